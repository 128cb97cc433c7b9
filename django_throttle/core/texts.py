"""Texts of the core that people read: ``make messages`` collects them, and the admin translates them."""


def gettext_noop(text: str) -> str:
    """The text as it is."""
    return text
