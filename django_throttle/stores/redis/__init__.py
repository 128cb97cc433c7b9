"""The Redis store: commands and their scripts, connections, Cluster and Sentinel, the circuit breaker."""
