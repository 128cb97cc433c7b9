"""What a call costs: measured queries, rows and bytes, and units that a view spends itself."""
