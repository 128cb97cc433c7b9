"""State of the process: leases, open sockets, dampers, prepaid units, and the time of its store."""
