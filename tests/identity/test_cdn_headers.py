"""Header fields in which CDNs say who the client is, in the forms that each of them documents."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import RequestFactory

from django_throttle.identity import client_address

PEER = "10.0.0.1"
V4, V6, FULL = "198.51.100.10", "2001:db8::7", "2001:0db8:85a3:0000:0000:8a2e:0370:7334"
SHORT = "2001:db8:85a3::8a2e:370:7334"
SINGLE = (
    "CF-Connecting-IP", "CF-Connecting-IPv6", "True-Client-IP", "Fastly-Client-IP", "X-Azure-SocketIP",
    "X-Azure-ClientIP", "X-Client-IP", "X-Real-IP", "Fly-Client-IP",
)  # fmt: skip
FORMS = [
    *((header, text, client) for header in SINGLE for text, client in ((V4, V4), (V6, V6), (FULL, SHORT))),
    # CloudFront: always with a port, IPv6 without brackets.
    ("CloudFront-Viewer-Address", f"{V4}:46532", V4),
    ("CloudFront-Viewer-Address", f"{V6}:46532", V6),
    ("CloudFront-Viewer-Address", f"{V6}:443", V6),
    ("CloudFront-Viewer-Address", f"{FULL}:443", SHORT),
    ("CloudFront-Viewer-Address", f"[{V6}]:443", V6),
    ("CloudFront-Viewer-Address", f"2001:db8::1, {V6}:8", V6),
    ("CloudFront-Viewer-Address", "unknown", PEER),
    ("CloudFront-Viewer-Address", V4, V4),
    ("CloudFront-Viewer-Address", "", PEER),
    # Azure's gateway: a list with ports.
    ("X-Forwarded-For", f"1.1.1.1:1, {V4}:46532", V4),
    ("X-Forwarded-For", f"[{V6}]:46532", V6),
    ("X-Forwarded-For", f"{V6}:46532", V6),
    ("X-Forwarded-For", f"{FULL}:443", SHORT),
    ("X-Forwarded-For", f"::ffff:{V4}:443", V4),
    ("X-Forwarded-For", "2001:db8::7:443", "2001:db8::7:443"),  # an address, for all that anybody can tell
    ("X-Forwarded-For", f"{V6}:123456", PEER),
    ("X-Forwarded-For", f"{V6}:4653\u0663", PEER),
]


@pytest.mark.parametrize(("header", "text", "client"), FORMS, ids=ascii)
def test_a_form_is_read(header: str, text: str, client: str, settings: Any) -> None:
    settings.DJANGO_THROTTLE = {"TRUSTED_PROXIES": [PEER], "PROXY_HEADER": header}
    request = RequestFactory().get("/", REMOTE_ADDR=PEER, headers={header: text})
    scope = {"type": "websocket", "client": [PEER, 1], "headers": [(header.lower().encode(), text.encode())]}
    assert [client_address(found) for found in (request, scope)] == [client, client]
