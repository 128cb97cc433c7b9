"""The command that replays an access log under rules."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_throttle import limiter
from django_throttle.call_facts import Facts
from django_throttle.identity.known_caller import KnownCaller
from django_throttle.recording import own_records
from django_throttle.stores import MemoryStore
from tests.inside import count_in
from tests.test_access_log import COMBINED, LOG

SAMPLE = {f"each{n}": {"rate": f"{n}/min", "algorithm": "sliding_log", "key": "ip"} for n in (60, 20, 10)}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """Runs the command over these rules; returns what it prints, and what it complains of."""

    def run(rules: Any, *arguments: str, log: Path = LOG, to: io.StringIO | None = None) -> tuple[str, str]:
        (tmp_path / "rules.json").write_text(rules if isinstance(rules, str) else json.dumps(rules))
        out, errors = io.StringIO(), to or io.StringIO()
        given = [str(tmp_path / "rules.json"), *(() if "--recorded" in arguments else ("--log", str(log))), *arguments]
        call_command("throttle_backtest", *given, stdout=out, stderr=errors, no_color=True)
        return out.getvalue(), errors.getvalue()

    return run


def test_as_json_and_in_words_with_progress(run: Any) -> None:
    out, errors = run(SAMPLE, "--json", to=Terminal())
    refused = {"each60": (87, 2), "each20": (931, 50), "each10": (1729, 79)}
    rules = {name: {"refused": number, "idents": idents} for name, (number, idents) in refused.items()}
    assert (json.loads(out), errors) == ({"calls": 10_000, "rules": rules}, "")
    out, errors = run({"each60": SAMPLE["each60"]}, "--most", "1", to=Terminal())
    assert out.splitlines() == [
        "10,000 calls, from 2015-05-17 10:05:00 to 2015-05-20 21:05:59 UTC",
        "each60: 87 refused (0.9%), of 2 identities",
        "       72  ip:75.97.9.59",
    ]
    assert "\rreading  [" in errors
    assert json.loads(run(SAMPLE, "--json", "--together")[0])["rules"]["each60"]["refused"] == 0


def test_rules_that_are_switched_off_are_tried_and_others_named(run: Any, tmp_path: Path) -> None:
    (tmp_path / "log").write_text(f"{COMBINED.format('-')}\n{COMBINED.format('-')}\nnothing\n")
    sockets = {"limit": 5, "algorithm": "concurrency", "events": ["connection"]}
    rules = {"off": {"rate": "1/min", "key": "ip", "enabled": False}, "sockets": sockets}
    out, errors = run(rules, log=tmp_path / "log")
    assert out.splitlines()[1:] == ["off: 1 refused (50.0%), of 1 identity", "        1  ip:192.0.2.7"]
    assert errors.splitlines() == [  # and progress is for terminals
        "sockets is left out: its events are not those of requests",
        "1 line not understood, the first is line 3: 'nothing'",
    ]


def test_what_it_cannot_read(run: Any, tmp_path: Path) -> None:
    (tmp_path / "log").write_text("nothing\n")
    sockets = {"limit": 5, "algorithm": "concurrency", "events": ["connection"]}
    for rules, log, said in (
        (SAMPLE, Path("/no/such"), r"cannot read '/no/such': No such file"),
        (SAMPLE, tmp_path, "Is a directory"),
        (SAMPLE, tmp_path / "log", "the log has no calls"),
        ({"sockets": sockets}, LOG, "no rule that can be replayed"),
        ({"api": {"rat": "1/min"}}, LOG, "did you mean 'rate'"),
        ("{", LOG, "is not JSON"),
    ):
        with pytest.raises(CommandError, match=said):
            run(rules, log=log)
    with pytest.raises(CommandError, match=r"cannot read .*rules.json.*: No such file"):
        call_command("throttle_backtest", str(tmp_path / "no" / "rules.json"), "--log", str(LOG))


@pytest.mark.django_db
def test_what_the_site_recorded(run: Any, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.DJANGO_THROTTLE = {"RULES": {"api": {"rate": "5/hour"}}, "AGENT": False}
    own_records.forget()
    count_in(MemoryStore(), monkeypatch)
    rules = {"strict": {"rate": "2/hour", "algorithm": "sliding_log"}}
    with pytest.raises(CommandError, match="no requests were recorded"):
        run(rules, "--recorded", "hour")
    for _ in range(4):
        limiter.decide(Facts("search", ("request",), KnownCaller("ip:192.0.2.1"), method="GET"))
    assert run(rules, "--recorded", "hour")[0].splitlines()[:2] == [
        "4 calls, all those of 100.00% of the callers",
        "strict: 2 refused (50.0%), of 1 identity",
    ]
    strict = {"refused": 2, "idents": 1, "estimate": {"refused": 2, "low": 2, "high": 2}}
    told = json.loads(run(rules, "--recorded", "hour", "--json")[0])
    assert told == {"calls": 4, "rules": {"strict": strict}, "share": 1.0, "cut": 0}
    own_records.forget()
