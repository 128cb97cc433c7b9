"""Shared parts of the HTTP entry points: the state of a request, refusals, header fields and slots."""
