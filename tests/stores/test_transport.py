"""What a store sends: the texts of scripts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from tests.servers import slack

# A thread that imports as the process forks leaves the lock of that module taken in the child.
FORK = """
import importlib._bootstrap, os, threading
import pytest

from django_throttle.stores import scripts

def importing():
    with importlib._bootstrap._ModuleLockManager("importlib.readers"):
        taken.set()
        threading.Event().wait()

taken = threading.Event()
threading.Thread(target=importing, daemon=True).start()
taken.wait()
child = os.fork()
if not child:
    scripts.script("gcra")
    os._exit(0)
os.waitpid(child, 0)
os._exit(0)
"""


def test_a_child_forked_while_a_thread_imports_can_read_scripts(servers: None) -> None:
    process = subprocess.Popen([sys.executable, "-c", FORK], start_new_session=True)
    try:
        assert process.wait(slack(10)) == 0
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
