"""How the readability of a page is measured."""

from __future__ import annotations

from docutils.core import publish_doctree

from docs.prose import figures, sentences

PAGE = """\
One rule holds for all, and this is said *once*. Call ``Limiter.acquire(…)``, ``peek()``, ``reset()`` or ``log()``!

- Item, with, too, many commas.

::

    code is not read, whatever, it, has

== ==
no no
== ==
"""


def test_sentences_are_those_of_paragraphs_and_items() -> None:
    assert list(sentences(publish_doctree(PAGE))) == [
        "One rule holds for all, and this is said once.",
        "Call code, code, code or code!",
        "Item, with, too, many commas.",
    ]


def test_figures_of_a_page() -> None:
    long = f"It has {'very ' * 34}much."
    found = figures(["One rule is kept.", "Calls took 10,000, 9,000 or 8,000 steps.", "a, b, c, d", long])
    assert (found.sentences, found.passive) == (4, 0.25)
    assert (found.too_long, found.many_commas) == ([long], ["a, b, c, d"])
    assert found.faults == [f"over 35 words: {long}"]
    assert figures([f"{'word ' * 17}words."] * 2).faults == ["18.0 words a sentence, over 17"]
    assert len(figures(["a, b, c, d"] * 4).faults) == 4
