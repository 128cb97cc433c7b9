"""What the HTTP entry points have in common: the state of a request, refusals, header fields and slots."""
