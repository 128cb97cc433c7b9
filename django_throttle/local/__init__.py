"""What one process holds by itself: leases, open sockets, dampers, units bought ahead, the time of its store."""
