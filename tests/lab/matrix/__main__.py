"""Run rows of the matrix: ``python -m tests.lab.matrix [ROW…]``."""

from __future__ import annotations

import sys

from tests.lab.matrix.rows import main

sys.exit(main(sys.argv[1:]))
