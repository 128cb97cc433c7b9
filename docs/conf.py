"""How Sphinx builds the documentation."""

from pathlib import Path

package = Path(__file__).parents[1] / "django_throttle"
source = (package / "__init__.py").read_text(encoding="utf-8")

project = "django_throttle"
author = copyright = "the django_throttle developers"  # noqa: A001 (Sphinx's name)
version = release = source.split('__version__ = "')[1].split('"')[0]

extensions: list[str] = []
exclude_patterns = ["_build"]
nitpicky = True
highlight_language = "python"
default_role = "any"

html_theme = "furo"
html_title = f"django_throttle {version}"
html_show_copyright = False
