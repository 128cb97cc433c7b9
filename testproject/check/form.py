"""A form as a browser would send it back: every field with the value that it shows."""

from __future__ import annotations

from html.parser import HTMLParser

UNSENT = ("submit", "button", "reset", "file", "image")


class FormReader(HTMLParser):
    """Reads the successful controls (HTML 4.10.22.4) of the form with this id."""

    def __init__(self, form_id: str) -> None:
        super().__init__()
        self.form_id = form_id
        self.inside = False
        self.select: str | None = None
        self.area: str | None = None
        self.fields: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        name = given.get("name") or ""
        if tag == "form":
            self.inside = given.get("id") == self.form_id
        elif not self.inside:
            return
        elif tag == "input":
            self._input(name, given)
        elif tag == "select":
            self.select = name
        elif tag == "option" and self.select and "selected" in given:
            self.fields.append((self.select, given.get("value") or ""))
        elif tag == "textarea":
            self.area = name
            self.fields.append((name, ""))

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self.inside = False
        elif tag == "select":
            self.select = None
        elif tag == "textarea":
            self.area = None

    def handle_data(self, text: str) -> None:
        if self.area is not None:
            name, before = self.fields.pop()
            self.fields.append((name, before + text))

    def _input(self, name: str, given: dict[str, str | None]) -> None:
        kind = given.get("type") or "text"
        chosen = kind not in ("checkbox", "radio") or "checked" in given
        if name and kind not in UNSENT and chosen:
            default = "on" if kind in ("checkbox", "radio") else ""
            self.fields.append((name, given.get("value") or default))


def read_form(html: str, form_id: str) -> dict[str, list[str]]:
    """The form's fields and their values, in the order of the page."""
    reader = FormReader(form_id)
    reader.feed(html)
    found: dict[str, list[str]] = {}
    for name, value in reader.fields:
        found.setdefault(name, []).append(value)
    return found
