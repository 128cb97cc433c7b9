"""Work that is done later: queue slots, deferred requests, and the runs of tasks."""
