"""How Sphinx builds the documentation."""

import sys
from pathlib import Path

import django
from django.conf import settings

package = Path(__file__).parents[1] / "django_throttle"
source = (package / "__init__.py").read_text(encoding="utf-8")

project = "django_throttle"
author = copyright = "the django_throttle developers"  # noqa: A001 (Sphinx's name)
version = release = source.split('__version__ = "')[1].split('"')[0]

# The reference is made from docstrings, so the package is imported, in a site that has nothing else.
sys.path.insert(0, str(package.parent))
settings.configure(
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "django_throttle", "django_throttle.console"],
    SECRET_KEY="docs",  # noqa: S106
)
django.setup()
extensions = ["sphinx.ext.autodoc"]
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
nitpick_ignore_regex = [("py:.*", ".*")]  # types of other packages have no page here
exclude_patterns = ["_build"]
nitpicky = True
highlight_language = "python"
default_role = "any"

html_theme = "furo"
html_title = f"django_throttle {version}"
html_show_copyright = False
html_static_path = ["static"]
html_css_files = ["docs.css"]
