# Every target makes what it needs: .venv once, and in it what the target uses, again when pyproject.toml changes.

VENV := .venv
BIN := $(VENV)/bin
# The first that runs, is new enough and can make an environment. Choose another with `make test PYTHON=...`.
PYTHON ?= $(shell for each in python3.12 python3.11 python3; do \
	$$each -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
		&& echo $$each && break; done)
# Processes of pytest; tests wait more than they count, so more than a small machine has cores.
JOBS ?= 4
# promise, of graphene-django, has no wheel.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --only-binary :all: --no-binary promise

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:
.SECONDARY:
.PHONY: help demo demo-check test test-servers test-browser test-timing outside outside-versions faults campaign soak deferring matrix simulation messages languages coverage lint types bench bench-commits docs prose release release-ready clean
# Without bytecode of ours each server that a test starts would compile the package anew.
unexport DJANGO_SETTINGS_MODULE PYTHONPATH PYTHONHOME PYTHONDONTWRITEBYTECODE

help:  ## Say what there is to make
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.with-demo  ## Run the demo site, with a Redis of its own; Ctrl-C ends it (CHANNEL_LAYER=pubsub: the chat on that layer)
	@$(BIN)/python -m testproject.demo

demo-check: $(VENV)/.with-demo  ## Do with the demo site what a person would, and print a table (CHANNEL_LAYER=pubsub)
	@$(BIN)/python -m testproject.demo_check

PYTEST := $(BIN)/python -m tests.databases $(BIN)/python -m pytest
PARALLEL := --numprocesses $(JOBS) --dist loadfile --no-loadscope-reorder

test: $(VENV)/.with-test  ## Run the tests that need nothing but Redis (ARGS="tests/core -x": part of them; JOBS=0: in one process)
	@$(PYTEST) $(PARALLEL) -m "smoke or not (servers or browser or timing)" $(ARGS)

test-servers: $(VENV)/.with-test  ## Run the tests that start web servers, Sentinels, Clusters and databases, or kill processes
	@$(PYTEST) $(PARALLEL) -m "servers and not (browser or timing)" $(ARGS)

test-browser: $(VENV)/.with-test  ## Run the tests that drive Chromium
	@$(PYTEST) $(PARALLEL) -m "browser and not timing" $(ARGS)

test-timing: $(VENV)/.with-test  ## Run the tests that bound a time, in one process and alone
	@$(PYTEST) -m timing $(ARGS)

outside: $(VENV)/.with-test  ## Try the wheel as a new user would: projects of django-admin, the docs word for word, real servers
	@$(PYTEST) $(PARALLEL) tests/outside -o timeout=900 $(ARGS)

outside-versions: $(VENV)/.with-test  ## Try the wheel, the tutorial and the commands on each Python and Django that is supported (PAIRS=3.13/6.1: there)
	@for pair in $(or $(PAIRS),$$($(BIN)/python -m tests.outside.pairs)); do echo "== Python and Django $$pair"; \
		OUTSIDE_PYTHON=python$${pair%/*} OUTSIDE_DJANGO=$${pair#*/} $(BIN)/python -m pytest -q -n 2 --no-header \
		tests/outside/test_environment.py tests/outside/test_quickstart.py tests/outside/test_commands.py || exit 1; done

faults: $(VENV)/.with-test  ## Run the tests of each fault and attack and write the table of docs/reference/faults.rst (ARGS="F07 A12": these)
	@$(BIN)/python -m tests.faults.rows $(ARGS)

campaign: $(VENV)/.with-test  ## Use real servers under faults drawn from a seed, check every answer (MINUTES=5 SEED=1)
	@$(BIN)/python -m tests.campaign --minutes $(or $(MINUTES),5) $(if $(SEED),--seed $(SEED)) $(ARGS)

soak: $(VENV)/.with-test  ## The same load for long, with edits and kills, and say what has grown (MINUTES=60 SEED=1)
	@$(BIN)/python -m tests.campaign.soak --minutes $(or $(MINUTES),60) $(if $(SEED),--seed $(SEED)) $(ARGS)

deferring: $(VENV)/.with-test  ## Defer 1,000 calls at 10/s to real workers, killed and not, and print figures (CALLS=100 RATE=20: shorter)
	@$(BIN)/python -m tests.deferring --calls $(or $(CALLS),1000) --rate $(or $(RATE),10)
	@$(BIN)/python -m tests.deferring --calls $(or $(CALLS),1000) --rate $(or $(RATE),10) --kill
	@$(BIN)/python -m tests.deferring --calls $(or $(CALLS),1000) --rate $(or $(RATE),10) --queue celery
	@$(BIN)/python -m tests.deferring --calls $(or $(CALLS),1000) --rate $(or $(RATE),10) --queue celery --kill

matrix: $(VENV)/.with-matrix  ## Run the suite on every supported version, database and Redis (ARGS="py312-dj60-redis7": that row)
	@JOBS=$(JOBS) $(BIN)/python -m tests.matrix $(ARGS)

simulation: $(VENV)/.with-test  ## Play a damper on a virtual clock: figures and pictures (ARGS="--scene gap --picture gap.svg", ARGS=--docs: the pages' own, ARGS=--help)
	@$(BIN)/python -m docs.simulation $(ARGS)

messages: $(VENV)/.with-test  ## Collect the texts to be translated into django_throttle/locale, and compile what is (needs gettext)
	@cd django_throttle && ../$(BIN)/python -m django makemessages --all --no-location --no-wrap
	@cd django_throttle && ../$(BIN)/python -m django compilemessages

languages: $(VENV)/.with-test  ## Check that every text is translated into every language (needs gettext)
	@$(BIN)/python -m tests.lab.languages

house: $(VENV)/.with-test  ## Print figures of the package's layout
	@$(BIN)/python -m tests.lab.house

coverage: $(VENV)/.with-test  ## The same, and say which branches it took
	@$(BIN)/python -m coverage erase
	@$(BIN)/python -m coverage run -m pytest $(ARGS)
	@$(BIN)/python -m coverage combine --quiet
	@$(BIN)/python -m coverage report

lint: $(VENV)/.with-lint  ## Check style and format
	@$(BIN)/python -m ruff check .
	@$(BIN)/python -m ruff format --check .

types: $(VENV)/.with-lint  ## Check types
	@$(BIN)/python -m mypy

bench: $(VENV)/.with-bench  ## Measure decisions beside a PING and other limiters (ARGS="--only sync": one group; ARGS=--quick: shorter; BENCH_JSON=path: also as JSON)
	@$(BIN)/python -m tests.benchmarks $(ARGS)

bench-commits: $(VENV)/.with-bench  ## Measure this tree beside a commit, in turns, on one core (AGAINST=commit)
	@$(BIN)/python -m tests.benchmarks.commits $(AGAINST) $(ARGS)

docs: $(VENV)/.with-docs  ## Build the documentation into docs/_build/html
	@$(BIN)/python -m sphinx -W --keep-going --quiet -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

prose: docs  ## Print how each page of the documentation reads; fails where sentences are too long
	@$(BIN)/python -m docs.prose

release: release-ready languages lint types prose test outside outside-versions  ## Build what is released into dist, test and check it, and say what to upload
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

clean:  ## Remove all that was made here
	rm -rf $(VENV) .tox .demo .outside build dist docs/_build .mypy_cache .pytest_cache .ruff_cache .hypothesis
	rm -f .coverage .coverage.*
	find django_throttle testproject tests docs -name __pycache__ -type d -prune -exec rm -rf {} +

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
	@echo "Installing what '$*' needs into $(VENV) (the first time takes about a minute) ..."
	@$(INSTALL) --editable ".[channels,drf,opentelemetry,prometheus]" --group $*
	@touch $@ $(addprefix $(VENV)/.with-,$(INCLUDED_$*))
