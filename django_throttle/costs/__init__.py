"""Measured costs of calls: queries, rows, bytes and times, and units that the code spends."""
