"""The site of ``tests.http.served`` as the applications that a server's own command loads: ``asgi`` and ``wsgi``.

By itself, with a port, it is served by wsgiref, as Django's runserver does.
"""

import gc
import os
import sys

from tests.http import served

gc.disable()  # what comes back only when garbage is collected does not come back
served.configure()

from django.core.asgi import get_asgi_application  # noqa: E402 - they need the settings
from django.core.servers.basehttp import run  # noqa: E402
from django.core.wsgi import get_wsgi_application  # noqa: E402

asgi, wsgi = get_asgi_application(), get_wsgi_application()
print("tests.http.real is loaded by process", os.getpid(), flush=True)
if __name__ == "__main__":
    run("127.0.0.1", int(sys.argv[1]), wsgi, threading=True)
