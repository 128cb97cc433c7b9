"""Dampers and batched quotas: limits that each process decides by itself, and reports to the store afterwards."""
