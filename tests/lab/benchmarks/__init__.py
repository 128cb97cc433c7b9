"""A subject is one process that does nothing else; those of a group take turns, and the best of many blocks counts."""
