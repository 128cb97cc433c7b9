"""Work done in a forked child, which may not hang."""

import os
import signal
import warnings
from collections.abc import Callable

PATIENCE = 5  # seconds; a child that hangs is ended


def holds_in_child(claim: Callable[[], object]) -> bool:
    """Whether ``claim`` is true in a forked child; False when it raises or hangs there."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that other threads run, which is the point
        pid = os.fork()
    if pid:
        return os.waitpid(pid, 0)[1] == 0
    holds = False
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(PATIENCE)
        holds = bool(claim())
    finally:
        os._exit(0 if holds else 1)
