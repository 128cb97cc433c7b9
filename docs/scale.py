"""The figures of docs/explanation/scale.rst: kept by the benchmark's growth groups, in a table, and in a picture.

``make bench ARGS="--only growth"`` measures them. ``python -m docs.scale`` writes the table and the picture anew.
"""

from __future__ import annotations

import hashlib
import json
import sys
from math import ceil
from pathlib import Path
from typing import Any, Final

from matplotlib import rc_context
from matplotlib.figure import Figure

FILE: Final = Path(__file__).with_name("scale.json")
TABLE: Final = FILE.with_suffix(".inc")
PICTURE: Final = FILE.parent / "pictures" / "scale.svg"

GROUPS: Final = ("identities", "rulebook", "flood", "crowd", "masters")
DECISIONS: Final = 1_000_000  # a second
SOCKETS: Final = 10_000_000
IDENTITIES: Final = 10_000_000  # each calls once in ten seconds then
BUSY: Final = 0.6  # of a processor, so that the others may be away
EXTENDED: Final = 180  # seconds between two extensions of a lease
MAX_CLIENTS: Final = 10_000  # of a Redis, by default
DEAD: Final = 20  # seconds, the default of PROCESS_TTL


def save(name: str, circumstances: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Keep what was measured of one group, and write the rest anew."""
    kept = figures()
    kept[name] = {"circumstances": circumstances, "figures": rows}
    FILE.write_text(json.dumps(kept, indent=1, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")


def figures() -> dict[str, Any]:
    """What was measured, by group."""
    found: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    return found


def figure(kept: dict[str, Any], group: str, begin: str, of: str = "value") -> float:
    """The figure of the row that begins like this."""
    [row] = [row for row in kept[group]["figures"] if row["what"].startswith(begin)]
    return float(row[of])


def table(kept: dict[str, Any]) -> str:
    """What was measured, and what follows from it, as reStructuredText."""
    lines = [".. written by python -m docs.scale", ""]
    lines += _list_table(("What", "Measured", "Asked"), (46, 34, 20), _measured(kept))
    lines += ["", ".. rubric:: A million decisions a second, ten million sockets", ""]
    lines += _list_table(("What", "From", "Needs"), (34, 42, 24), _needs(kept))
    return "\n".join(lines) + "\n"


def _measured(kept: dict[str, Any]) -> list[tuple[str, str, str]]:
    found = []
    for group in GROUPS:
        section = ""
        for row in kept[group]["figures"]:
            where = row["section"].partition(" (")[0]
            found += [(f"*{where}*", "", "")] if where != section else []
            section = where
            value = f"{_number(row['value'])} {row['unit']}".strip()
            is_compared = row["ratio"] is not None and not row["what"].startswith(f"{row['beside']}:")
            beside = f"; {row['ratio']:.2f} × the figure of {row['beside']}" if is_compared else ""
            note = f" ({row['note']})" if row["note"] else ""
            of = " ×" if is_compared else f" {row['unit']}"
            verdict = ", missed" if row["verdict"] == "MISSED" else ""
            asked = f"{row['sense']} {_number(row['asked'])}{of}{verdict}" if row["asked"] is not None else ""
            found.append((row["what"], value + beside + note, asked))
    return found


def _needs(kept: dict[str, Any]) -> list[tuple[str, str, str]]:
    client = figure(kept, "masters", "Cluster of 6 masters: clients'")
    redis = figure(kept, "masters", "Cluster of 6 masters: Redis'")
    alone = figure(kept, "masters", "Redis alone: Redis'")
    each = figure(kept, "identities", "1,000,000 identities: memory")
    here, there = (figure(kept, "crowd", f"memory of each in {what}") for what in ("Python", "Redis"))
    lines = figure(kept, "crowd", "connections of a process")
    commands = figure(kept, "crowd", "the same, for each process")
    renewal = figure(kept, "crowd", "Redis' processor, to extend")
    sent = figure(kept, "crowd", "Redis commands for that")
    total, processes = _crowd(kept)
    many, busy = SOCKETS * processes // total, f"{BUSY:.0%} busy"
    return [
        (f"{DECISIONS:,} decisions/s: Python", f"{client:.1f} µs each", f"{ceil(client / BUSY)} cores, {busy}"),
        ("the same: Redis", f"{redis:.1f} µs each", f"{ceil(redis / BUSY)} masters, {busy}"),
        (f"{IDENTITIES:,} identities: Redis", f"{each:.0f} B each, five rules", f"{IDENTITIES * each / 1e9:.1f} GB"),
        ("one hot identity: its master", f"{alone:.1f} µs each, one slot", f"{1e6 / alone:,.0f} decisions/s at most"),
        (f"{SOCKETS:,} sockets: processes", f"{total // processes:,} in each", f"{many:,}"),
        ("the same: Python's memory", f"{here:.1f} kB each, Channels included", f"{SOCKETS * here / 1e6:,.0f} GB"),
        ("the same: Redis' memory", f"{there:.0f} B each", f"{SOCKETS * there / 1e9:.1f} GB"),
        ("the same, silent: commands", f"{commands:.1f}/s a process", f"{many * commands:,.0f}/s"),
        (
            "the same: times to live extended",
            f"{renewal:.1f} µs of Redis each, every {EXTENDED} s",
            f"{sent * SOCKETS / EXTENDED:,.0f} commands/s, {SOCKETS / EXTENDED * renewal / 1e6:.2f} cores",
        ),
        (
            "connections to each Redis",
            f"{lines:.0f} of a process, {MAX_CLIENTS:,} by default",
            f"{many * lines:,.0f}; full at {MAX_CLIENTS / lines:,.0f} processes",
        ),
    ]


def _crowd(kept: dict[str, Any]) -> tuple[int, int]:
    """How many sockets were open, in how many processes."""
    words = kept["crowd"]["figures"][0]["section"].split()
    return int(words[0].replace(",", "")), int(words[4])


def _list_table(head: tuple[str, ...], widths: tuple[int, ...], rows: list[tuple[str, str, str]]) -> list[str]:
    lines = [".. list-table::", "   :header-rows: 1", f"   :widths: {' '.join(map(str, widths))}", ""]
    for row in (head, *rows):
        first, *rest = row
        lines += [f"   * - {first}".rstrip(), *[f"     - {cell}".rstrip() for cell in rest]]
    return lines


def _number(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.1f}" if number >= 10 else f"{number:.2f}"


OURS, OTHERS, BOUND = "#0b5394", "#b7b7b7", "#a64d00"


def draw(kept: dict[str, Any], path: Path) -> None:
    """Write the picture; it says of which figures it is, so that a test can tell."""
    with rc_context({"svg.hashsalt": "django_throttle"}):
        picture = Figure(figsize=(10.4, 3.4), layout="constrained")
        ratios, memory, masters = picture.subplots(1, 3)
        _draw_ratios(ratios, kept)
        _draw_flood(memory, kept)
        _draw_masters(masters, kept)
        picture.savefig(path, metadata={"Date": None, "Description": digest(kept)})


def digest(kept: dict[str, Any]) -> str:
    """A hash of the figures."""
    return hashlib.blake2b(json.dumps(kept, sort_keys=True).encode(), digest_size=8).hexdigest()


def _draw_ratios(axes: Any, kept: dict[str, Any]) -> None:
    """How much longer a decision takes with many."""
    found = {
        "1,000,000\nidentities": figure(kept, "identities", "1,000,000 identities: a decision", "ratio"),
        "1,000\nrules": figure(kept, "rulebook", "1,000 rules: RuleThrottle", "ratio"),
        "10,000\noverrides": figure(kept, "rulebook", "10,000 overrides", "ratio"),
    }
    axes.set_title("a decision, × that with few", fontsize="medium")
    axes.bar(list(found), list(found.values()), color=OURS, width=0.5)
    axes.axhline(1.1, color=BOUND, linewidth=1, linestyle="--", label="asked")
    axes.set_ylim(0, 1.4)
    axes.legend(loc="upper left", frameon=False)


def _draw_flood(axes: Any, kept: dict[str, Any]) -> None:
    """By how much a process grows, part by part."""
    *parts, whole = kept["flood"]["figures"]
    names = ["Redis\nanswers", "bought\nahead", "dampers", "Redis\naway", "all"]
    values = [row["value"] for row in (*parts, whole)]
    axes.set_title(f"MiB of a process, {whole['section'].split()[6]} new identities", fontsize="medium")
    axes.bar(names, values, color=[OTHERS] * len(parts) + [OURS], width=0.6)
    axes.axhline(whole["asked"], color=BOUND, linewidth=1, linestyle="--", label="asked")
    axes.legend(loc="upper left", frameon=False)


def _draw_masters(axes: Any, kept: dict[str, Any]) -> None:
    """Processor time of a decision, at clients and at Redis."""
    names = {"alone": "Redis alone", "3 masters": "Cluster of 3 masters", "6 masters": "Cluster of 6 masters"}
    redis = [figure(kept, "masters", f"{what}: Redis'") for what in names.values()]
    client = [figure(kept, "masters", f"{what}: clients'") for what in names.values()]
    axes.set_title("µs of processors, a decision", fontsize="medium")
    axes.bar(list(names), client, color=OTHERS, width=0.5, label="Python")
    axes.bar(list(names), redis, bottom=client, color=OURS, width=0.5, label="Redis")
    axes.legend(loc="upper left", frameon=False)
    axes.set_ylim(0, 1.4 * max(a + b for a, b in zip(client, redis, strict=True)))


def main() -> None:
    """Write the table and the picture of the figures that are kept, once every group was measured."""
    kept = figures()
    if lacking := [group for group in GROUPS if group not in kept]:
        sys.stderr.write(f"not measured yet: {', '.join(lacking)}\n")
        return
    TABLE.write_text(table(kept), encoding="utf-8")
    draw(kept, PICTURE)


if __name__ == "__main__":
    main()
