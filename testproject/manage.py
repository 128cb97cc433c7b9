"""Django's command line for the demo site: ``python -m testproject.manage``, or run this file."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from django.core.management import execute_from_command_line


def main() -> None:
    """Run the command that the arguments name."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "testproject.settings")
    # Run as a file, Python puts this folder on the path instead of the one that holds the packages.
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
