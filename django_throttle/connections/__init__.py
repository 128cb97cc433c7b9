"""Leases of open connections in process and Redis, control messages to sockets, and the overview of all processes."""
