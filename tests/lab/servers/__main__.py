"""Measure the table of docs/reference/servers.rst and write it anew: ``python -m tests.lab.servers``."""

from tests.lab.servers.matrix import main

main()
