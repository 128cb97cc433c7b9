# Every target makes what it needs: .venv once, and in it what the target uses, again when pyproject.toml changes.

VENV := .venv
BIN := $(VENV)/bin
# Supported versions, newest first. Where pyenv is installed, its versions count too.
VERSIONS := 3.13 3.12 3.11
PYENVS := $(shell pyenv versions --bare 2>/dev/null | grep -E '^3\.1[1-9]\.[0-9]+$$' | sort -rV | paste -sd:)
ifneq ($(PYENVS),)
export PYENV_VERSION ?= $(PYENVS)
endif
FIND_PYTHON = $(firstword $(foreach name,$(1),$(shell PYENV_VERSION=$(PYENV_VERSION) \
	$(name) -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $(name))))
# The newest that can make an environment. Choose another with `make test PYTHON=...`.
PYTHON ?= $(call FIND_PYTHON,$(VERSIONS:%=python%) python3)
OLDEST = $(call FIND_PYTHON,python3.11 python3.12 python3.13)
# Processes of pytest; tests wait more than they compute, so more than a small machine has cores.
JOBS ?= 4
# promise, of graphene-django, has no wheel.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --only-binary :all: --no-binary promise
PYTEST := $(BIN)/python -m tests.databases $(BIN)/python -m pytest
PARALLEL := --numprocesses $(JOBS) --dist loadfile --no-loadscope-reorder
COMMON := smoke or not (servers or browser or timing)

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:
.SECONDARY:
.PHONY: $(shell grep -oE '^[a-z-]+:' $(firstword $(MAKEFILE_LIST)) | tr -d :)
# Without bytecode each server that a test starts would compile the package anew.
unexport DJANGO_SETTINGS_MODULE PYTHONPATH PYTHONHOME PYTHONDONTWRITEBYTECODE

help:
	@awk -F ':.*## ' '/^## / { print "\n" substr($$0, 4) } /^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' \
		$(firstword $(MAKEFILE_LIST))

## First steps

demo: $(VENV)/.with-demo  ## Run the demo site with its own Redis; Ctrl-C ends it
	@$(BIN)/python -m testproject.demo

test: $(VENV)/.with-test  ## Run the tests that need nothing but Redis (ARGS="tests/core -x": some of them)
	@$(PYTEST) $(PARALLEL) -m "$(COMMON)" $(ARGS)

lint: $(VENV)/.with-lint  ## Check style and format
	@$(BIN)/python -m ruff check .
	@$(BIN)/python -m ruff format --check .

docs: $(VENV)/.with-docs  ## Build the documentation into docs/_build/html
	@$(BIN)/python -m sphinx -W --keep-going --quiet -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

release: release-ready languages lint types prose test test-servers test-browser test-timing outside outside-versions  ## Test and build a release into dist, and print what to upload
	@rm -rf dist
	@$(BIN)/python -m hatchling build
	@$(BIN)/python -m twine check --strict dist/*
	@$(BIN)/python -m check_wheel_contents dist/*.whl
	@cd dist && sha256sum *
	@echo "Tag this commit v$$($(BIN)/python -m hatchling version), then upload: $(BIN)/python -m twine upload dist/*"

# What would be found only after all tests have run, is asked first.
release-ready: $(VENV)/.with-test
	@test -z "$$(git status --porcelain)" || { echo "make: commit or remove first: $$(git status --short)" >&2; exit 1; }
	@grep --quiet --fixed-strings "## [$$($(BIN)/python -m hatchling version)]" CHANGELOG.md || { \
		echo "make: CHANGELOG.md has no part for version $$($(BIN)/python -m hatchling version)" >&2; exit 1; }

## More tests

test-servers: $(VENV)/.with-test  ## Run the tests that start web servers, Sentinels, Clusters, databases or processes
	@$(PYTEST) $(PARALLEL) -m "servers and not (browser or timing)" $(ARGS)

test-browser: $(VENV)/.with-test  ## Run the tests that drive Chromium
	@$(PYTEST) $(PARALLEL) -m "browser and not timing" $(ARGS)

test-timing: $(VENV)/.with-test  ## Run the tests that bound a time, in one process; leave the machine alone meanwhile
	@$(PYTEST) -m timing $(ARGS)

test-oldest:  ## Run `make test` on the oldest supported Python that is installed
	@$(MAKE) --no-print-directory test VENV=.venv-oldest PYTHON=$(OLDEST)

outside: $(VENV)/.with-test  ## Try the built wheel in new projects, with the code of the docs and real servers
	@$(PYTEST) $(PARALLEL) tests/outside -o timeout=900 $(ARGS)

outside-versions: $(VENV)/.with-test  ## Try the wheel on each supported Python and Django (PAIRS=3.13/6.1: on that pair)
	@for pair in $(or $(PAIRS),$$($(BIN)/python -m tests.outside.pairs)); do echo "== Python and Django $$pair"; \
		OUTSIDE_PYTHON=python$${pair%/*} OUTSIDE_DJANGO=$${pair#*/} $(BIN)/python -m pytest -q -n 2 --no-header \
		tests/outside/test_environment.py tests/outside/test_quickstart.py tests/outside/test_commands.py || exit 1; done

demo-check: $(VENV)/.with-demo  ## Check the demo site the way a visitor would (CHANNEL_LAYER=pubsub: on that layer)
	@$(BIN)/python -m testproject.demo_check

types: $(VENV)/.with-lint  ## Check types
	@$(BIN)/python -m mypy

prose: docs  ## Print how each page of the documentation reads; fail where sentences are too long
	@$(BIN)/python -m docs.prose

coverage: $(VENV)/.with-test  ## Run `make test` and print the branches that no test takes
	@$(PYTEST) $(PARALLEL) -m "$(COMMON)" --cov --cov-report=term-missing:skip-covered $(ARGS)

languages: $(VENV)/.with-test  ## Check that every text is translated into every language (needs gettext)
	@$(BIN)/python -m tests.lab.languages

messages: $(VENV)/.with-test  ## Collect the texts to translate into the catalogs of both apps, and compile them (needs gettext)
	@$(BIN)/python -m tests.lab.languages --all --no-location --no-wrap
	@cd django_throttle && ../$(BIN)/python -m django compilemessages

clean:  ## Remove everything that make created
	rm -rf .venv .venv-oldest .venv-newest .tox .demo .outside build dist docs/_build .mypy_cache .pytest_cache .ruff_cache .hypothesis
	rm -f .coverage .coverage.*
	find django_throttle testproject tests docs -name __pycache__ -type d -prune -exec rm -rf {} +

## Laboratories (tests/lab has a README for each)

bench: $(VENV)/.with-bench  ## Measure decisions beside a PING and other limiters (ARGS="--only sync": one group)
	@$(BIN)/python -m tests.lab.benchmarks $(ARGS)

bench-commits: $(VENV)/.with-bench  ## Measure this tree beside a commit on one core (AGAINST=commit)
	@$(BIN)/python -m tests.lab.benchmarks.commits $(AGAINST) $(ARGS)

campaign: $(VENV)/.with-test  ## Play random faults on real servers and check every answer (MINUTES=5 SEED=1)
	@$(BIN)/python -m tests.lab.campaign --minutes $(or $(MINUTES),5) $(if $(SEED),--seed $(SEED)) $(ARGS)

script: $(VENV)/.with-test  ## Print the script of decisions, and a call of it under these rules for redis-cli (RULES='10/s "5/h algorithm=gcra"')
	@$(BIN)/python -m tests.lab.script $(RULES)

soak: $(VENV)/.with-test  ## Play a load for a long time and print what has grown (MINUTES=60 SEED=1)
	@$(BIN)/python -m tests.lab.campaign.soak --minutes $(or $(MINUTES),60) $(if $(SEED),--seed $(SEED)) $(ARGS)

deferring: $(VENV)/.with-test  ## Defer calls to real workers, some of them killed (CALLS=1000 RATE=10)
	@for options in "" "--kill" "--queue celery" "--queue celery --kill"; do \
		$(BIN)/python -m tests.lab.deferring --calls $(or $(CALLS),1000) --rate $(or $(RATE),10) $$options || exit 1; done

faults: $(VENV)/.with-test  ## Run the tests of each fault and attack and write their table (ARGS="F07 A12": these)
	@$(BIN)/python -m tests.faults.rows $(ARGS)

foreign: $(VENV)/.with-test  ## Run test suites of other projects with this package installed (ARGS=ninja: one of them)
	@$(BIN)/python -m tests.lab.foreign $(ARGS)

matrix: $(VENV)/.with-matrix  ## Run the suite on each supported version, database and Redis (ARGS=py312-dj60-redis7: one row)
	@JOBS=$(JOBS) $(BIN)/python -m tests.lab.matrix $(ARGS)

mutants: $(VENV)/.with-test  ## Change the package in 300 places and print which changes no test notices (SEED=1)
	@$(BIN)/python -m tests.lab.mutants $(ARGS)

simulation: $(VENV)/.with-test  ## Play a damper on a virtual clock and draw pictures (ARGS=--help)
	@$(BIN)/python -m tests.lab.simulation $(ARGS)

# Dependency groups need pip 25.1; the one that Python brings along may be older.
$(VENV)/.made:
	@test -n "$(PYTHON)" || { \
		echo "make: no Python 3.11 or newer with venv on PATH (Debian: apt install python3-venv)" >&2; exit 1; }
	@echo "Making $(VENV) with $(PYTHON) ..."
	@$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	@touch $@

# The groups that a group of pyproject.toml includes: with it they are there too.
INCLUDED_test := demo release
INCLUDED_lint := test demo release
INCLUDED_docs := test demo release
INCLUDED_bench := test demo release
INCLUDED_matrix := test demo release

$(VENV)/.with-%: pyproject.toml $(VENV)/.made
	@echo "Installing what '$*' needs into $(VENV) (the first time takes about a minute) ..." >&2
	@$(INSTALL) --editable ".[channels,drf,opentelemetry,prometheus]" --group $*
	@touch $@ $(addprefix $(VENV)/.with-,$(INCLUDED_$*))
