"""Leases of open connections: what this process holds, and how Redis is kept true to it."""
