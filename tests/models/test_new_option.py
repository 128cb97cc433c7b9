"""An option that is added to the table is there wherever options are, without another line."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from django.test import Client

import django_throttle
from django_throttle.admin.rules import fieldsets, preview_options
from django_throttle.core import Rule
from django_throttle.core.descriptions import describe
from django_throttle.core.options import TUNING, Choice, option
from django_throttle.exceptions import InvalidRule
from django_throttle.models import ThrottleChange, ThrottleRule
from django_throttle.rulebook.sources import from_database
from docs.options import option_table
from tests.admin.conftest import errors, url

TYPED = {
    "name": "api", "enabled": "on", "algorithm": "gcra", "rate": "100/min", "refill": "continuous", "resolution": "1",
    "key": "user", "scopes": "*", "events": ["request"], "action": "reject", "on_store_failure": "local", "cost": "1",
    "enforce_at": "1.0", "estimator": "fast", "unit": "calls", "at_limit": "reject", "badge": "blue",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Badged(Rule):
    badge: str = option(
        "choice",
        "none",
        group=TUNING,
        label="Badge of callers",
        only=("gcra",),
        choices={"none": Choice("No badge"), "blue": Choice("Blue badge", "wearing a blue badge")},
        help="Which badge callers wear.",
    )


def test_a_rule_has_it_checks_it_and_describes_it() -> None:
    rule = Badged("api", "5/min", algorithm="gcra", badge="blue")
    assert rule.badge == "blue" and rule.parts == (rule,) and rule.share(2).badge == "blue"
    assert rule.as_options() == {"rate": "5/min", "algorithm": "gcra", "badge": "blue"}
    assert Badged.from_options("api", rule.as_options()) == rule
    assert Badged("api", "5/min").badge == "none"
    assert describe(rule) == "each user or address: 5 requests per minute, bursts up to 5, wearing a blue badge"
    for options, said in (
        ({"algorithm": "gcra", "badge": "bleu"}, "must be one of none, blue, not 'bleu'; did you mean 'blue'[?]"),
        ({"badge": "blue"}, r"badge of callers \(badge\) belongs to GCRA only"),
        ({"bagde": "blue"}, "no option 'bagde'; did you mean 'badge'[?]"),
    ):
        with pytest.raises(InvalidRule, match=said):
            Badged.from_options("api", {"rate": "5/min", **options})


@pytest.mark.django_db
def test_the_database_the_admin_and_the_docs_have_it(admin_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ThrottleRule, "core", Badged)
    page = admin_client.get(url("throttlerule_add"))
    field = page.context["adminform"].form.fields["badge"]
    assert (field.label, field.help_text) == ("Badge of callers", "Which badge callers wear.")
    assert field.choices == [("none", "No badge"), ("blue", "Blue badge")]
    assert "badge" in dict(fieldsets(Badged))[TUNING]["fields"]
    wrong = admin_client.post(url("throttlerule_add"), {**TYPED, "algorithm": "sliding_log"})
    assert errors(wrong) == {"badge": ["“Badge of callers” belongs to GCRA only"]}
    admin_client.post(url("throttlerule_add"), TYPED)
    row = ThrottleRule.objects.get()
    assert row.options == {"badge": "blue"} and row.meaning.endswith("wearing a blue badge")
    assert ThrottleRule.from_rule(row.as_rule()).state() == row.state()
    assert from_database().rules["api"].as_options()["badge"] == "blue"
    assert ThrottleChange.objects.get().after["badge"] == "blue"
    shown = preview_options(Badged)
    assert (shown["algorithms"]["badge"], shown["defaults"]["badge"]) == (["gcra"], "none")
    line = "   * - ``badge``\n     - Badge of callers\n     - ``none``, ``blue``\n     - ``none``\n     - ``gcra``\n"
    assert line in option_table(Badged)


# What is added to a copy of the package: a module, the text behind which it goes, and the text.
NOSE = 'KeyKind(name="nose", label="Nose", words="each nose", find=id, override="Nose", rank=9),'
BADGE = '    badge: bool = option("switch", False, help="A badge.", words="with a badge")\n'
ADDED = [
    ("conf", "class Conf:\n", '    GREETING: str = "hello"  # what mail servers say\n'),
    ("checks.settings", "Wanted]] = {\n", '    "GREETING": _one_of("hello", "good day"),\n'),
    ("core.options", "_: KW_ONLY\n", BADGE),
    ("core.option_words", "NOUNS: Final = {\n", '"sneeze": "sneezes",\n'),
    ("core.option_words", "] = {\n", '"sneeze": lambda count: translatable("{count} sneezes", count=count),\n'),
    ("core.key", "_EVERY: Final = (\n", NOSE),
    ("core.algorithms.__init__", "for each in _ALL_ALGORITHMS}\n", 'ALGORITHMS["drip"] = GCRA\n'),
]
SCRIPT = """
import django
django.setup()
from django.core.checks import run_checks
from django.core.management import call_command
from django.test import override_settings
from django_throttle.conf import conf
from django_throttle.models import ThrottleOverride, ThrottleRule
print(conf().GREETING)
for greeting in ("good day", "bye"):
    with override_settings(DJANGO_THROTTLE={"GREETING": greeting}):
        print(conf().GREETING, *(message.msg for message in run_checks() if message.id == "django_throttle.E001"))
call_command("makemigrations", "--check", "--dry-run")
call_command("migrate", verbosity=0)
columns = {"algorithm": "drip", "key": "nose", "events": ["sneeze"], "options": {"badge": True}}
override = {"kind": "nose", "value": "red", "effect": "block", "reason": "x"}
for row in (ThrottleRule(name="api", rate="5/min", **columns), ThrottleOverride(**override)):
    row.full_clean()
    row.save()
    print(type(row).objects.get().meaning)
"""
SETTINGS = """
SECRET_KEY = "x"
INSTALLED_APPS = [
    "django.contrib.contenttypes", "django.contrib.auth", "django_throttle", "django_throttle.console",
]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
DJANGO_THROTTLE = {}
"""


@pytest.mark.usefixtures("servers")
def test_a_setting_is_checked_and_no_option_event_key_or_algorithm_needs_a_migration(tmp_path: Path) -> None:
    package = tmp_path / "django_throttle"
    shutil.copytree(django_throttle.__path__[0], package, ignore=shutil.ignore_patterns("__pycache__"))
    for name, behind, text in ADDED:
        file = package.joinpath(*name.split(".")).with_suffix(".py")
        before, found, after = file.read_text().partition(behind)
        assert found
        file.write_text(before + found + text + after)
    (tmp_path / "site_settings.py").write_text(SETTINGS)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "DJANGO_SETTINGS_MODULE": "site_settings"}
    line = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [
        "hello", "good day", "bye GREETING must be one of hello, good day, not 'bye'", "No changes detected",
        "each nose: 5 sneezes per minute, bursts up to 5, with a badge", "blocked",
    ], done.stderr  # fmt: skip
