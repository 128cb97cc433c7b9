"""A damped budget on a virtual clock: many nodes, late flushes, and what comes of them, the same for the same seed."""
