"""Dampers: a meter for each ident in each process, and the aggregator that adds up what all of them attempt."""
