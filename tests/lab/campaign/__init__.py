"""Rounds of processes, threads and tasks on real servers, under faults drawn from a seed, and their verdict."""
