"""Processes, threads and tasks that use the package on real servers, under faults drawn from a seed, and the verdict.

``make campaign`` runs rounds of it; ``history.py`` is what each operation leaves behind, ``checks.py`` what must hold.
"""
