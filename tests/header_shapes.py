"""What proxies and liars write into headers, and who the client is then.

Each shape is the lines of a header, as they reach us from the trusted peer 10.0.0.1, and the client when one proxy
is declared, when two are, and when the networks 10.0.0.0/8 and fd00::/8 are. With none declared it is always the peer.
"""

from __future__ import annotations

from typing import Final, NamedTuple

PEER: Final = "10.0.0.1"
NETWORKS: Final = ("10.0.0.0/8", "fd00::/8")
CLIENT: Final = "203.0.113.9"
LIE: Final = "198.51.100.7"
NET: Final = "2001:db8::/64"


class Shape(NamedTuple):
    """The lines, and the client for a count of one, of two, and for networks."""

    lines: tuple[str, ...]
    one: str = PEER
    two: str = PEER
    networks: str = PEER


def single(line: str, client: str = CLIENT) -> Shape:
    """One line with one address: the client's, unless a second proxy should have been there."""
    return Shape((line,), client, PEER, client)


NO_ADDRESSES: Final = (
    "203.000.113.009~0313.0.0161.011~3405803785~0xcb007109~203.0.113~203.0.113.9.9~203.0.113.256~203.0.113.9/32"
    "~-203.0.113.9~203.0.113.9 198.51.100.7~203.0.113.9; 198.51.100.7~\"203.0.113.9\"~'203.0.113.9'~203.0.113.9:"
    "~203.0.113.9:port~203.0.113.9:1234567~203.0.113.9\x00~203.0.113.9\r\n~\u00b203.0.113.9~[203.0.113.9~2001:db8::1]"
    "~[]~[]:80~:80~1::2::3~:::~%~%eth0~localhost~example.com~unix:~for=203.0.113.9"
)
X_FORWARDED_FOR: Final = (
    # Nothing, and one address.
    Shape(()),
    Shape(("",)),
    single(CLIENT),
    single(f" {CLIENT} "),
    # Whatever stands further left than our proxies was written by the client.
    Shape((f"{LIE}, {CLIENT}",), CLIENT, LIE, CLIENT),
    Shape((f"{LIE} ,\t{CLIENT}",), CLIENT, LIE, CLIENT),
    Shape((f"1.1.1.1, 2.2.2.2, {LIE}, {CLIENT}",), CLIENT, LIE, CLIENT),
    Shape((f"10.0.0.99, {CLIENT}",), CLIENT, "10.0.0.99", CLIENT),
    Shape((f"unknown, {CLIENT}",), CLIENT, PEER, CLIENT),
    Shape((f"{'x' * 5000}, {CLIENT}",), CLIENT, PEER, CLIENT),
    Shape((",".join([CLIENT] * 1000),), CLIENT, CLIENT, CLIENT),
    # Several lines of the same name are one list, in their order.
    Shape((LIE, CLIENT), CLIENT, LIE, CLIENT),
    Shape(("1.1.1.1", f"{LIE}, {CLIENT}"), CLIENT, LIE, CLIENT),
    Shape(("", CLIENT), CLIENT, PEER, CLIENT),
    Shape((CLIENT, ""), PEER, CLIENT, PEER),
    # Chains of our own proxies.
    Shape((f"{CLIENT}, 10.0.0.2",), "10.0.0.2", CLIENT, CLIENT),
    Shape((CLIENT, "10.0.0.2"), "10.0.0.2", CLIENT, CLIENT),
    Shape((f"{CLIENT}, 10.0.0.3, 10.0.0.2",), "10.0.0.2", "10.0.0.3", CLIENT),
    Shape(("10.0.0.3, 10.0.0.2",), "10.0.0.2", "10.0.0.3", "10.0.0.3"),
    Shape((f"{CLIENT}, ::ffff:10.0.0.2",), "10.0.0.2", CLIENT, CLIENT),
    Shape((f"{CLIENT}, fd00::2",), "fd00::/64", CLIENT, CLIENT),
    Shape((f"{CLIENT}, [fd00::2]:443",), "fd00::/64", CLIENT, CLIENT),
    Shape((f"{CLIENT}{',10.0.0.2' * 100}",), "10.0.0.2", "10.0.0.2", "10.0.0.2"),
    # Empty entries hold a place: a proxy that knows nothing must not make room for a lie.
    Shape((f"{CLIENT},",), PEER, CLIENT, PEER),
    Shape((f",{CLIENT}",), CLIENT, PEER, CLIENT),
    Shape((f"{LIE},,{CLIENT}",), CLIENT, PEER, CLIENT),
    # Nor must one that hides its client, or does not know it.
    Shape(("unknown",)),
    Shape((f"{LIE}, unknown",), PEER, LIE, PEER),
    Shape((f"{LIE}, unknown, 10.0.0.2",), "10.0.0.2", PEER, "10.0.0.2"),
    # Ports and brackets.
    single(f"{CLIENT}:4711"),
    single("[2001:db8::1]:443", NET),
    Shape((f"{LIE}:1, {CLIENT}:2",), CLIENT, LIE, CLIENT),
    # Notations of one address.
    single("2001:db8::1", NET),
    single("2001:0db8:0000:0000:0000:0000:0000:0001", NET),
    single("2001:db8::203.0.113.9", NET),
    single("2001:db8::1:443", NET),
    single("2001:db8:0:1::1", "2001:db8:0:1::/64"),
    single("2001:db8::1%eth0", NET),
    single("[2001:db8::1%eth0]:443", NET),
    single(f"2001:db8::1%{'x' * 3000}", NET),
    single("::1", "::/64"),
    single("::ffff:203.0.113.9"),
    single("::ffff:cb00:7109"),
    single("[::ffff:203.0.113.9]:80"),
    single("64:ff9b::203.0.113.9"),
    # What is no address is nobody: the peer answers for it.
    *(Shape((line,)) for line in (*NO_ADDRESSES.split("~"), "x" * 100_000, "1" * 100_000, ":" * 100_000)),
)

FORWARDED: Final = (
    Shape(()),
    Shape(("",)),
    single(f"for={CLIENT}"),
    single(f"For={CLIENT}"),
    single(f'for="{CLIENT}:4711"'),
    single(f"for={CLIENT}:4711"),
    single('for="[2001:db8::1]:443"', NET),
    single("for=[2001:db8::1]", NET),
    single('for="\\2\\0\\3.0.113.9"'),
    single(f"for={CLIENT};proto=https;by=10.0.0.1"),
    single(f'by=10.0.0.1;for={CLIENT};host="a.example"'),
    single(f"  for={CLIENT}\t"),
    Shape((f"for={LIE}, for={CLIENT}",), CLIENT, LIE, CLIENT),
    Shape((f"for={LIE}", f"for={CLIENT}"), CLIENT, LIE, CLIENT),
    Shape((f"for={CLIENT}, for=10.0.0.2",), "10.0.0.2", CLIENT, CLIENT),
    Shape((f'for={CLIENT}, for="[fd00::2]"',), "fd00::/64", CLIENT, CLIENT),
    # A quote that the client never closes swallows nothing of what our proxy adds.
    Shape((f'for="{LIE}, for={CLIENT}',), CLIENT, PEER, CLIENT),
    Shape((f'for={LIE};host="\\", for={CLIENT}',), CLIENT, PEER, CLIENT),
    # A comma in what our proxy has quoted begins nothing.
    Shape((f'for={CLIENT};host="a,for={LIE};x=\\""',)),
    Shape((f'for={CLIENT};host="a, for={LIE};b=\\"c\\""',)),
    # What hides, and what makes no sense.
    Shape(("for=unknown",)),
    Shape(('for="_hidden:_port"',)),
    Shape((f"for={LIE}, for=unknown",), PEER, LIE, PEER),
    Shape((f"for={LIE}, proto=https",), PEER, LIE, PEER),
    Shape((f"for={CLIENT};for={LIE}",)),
    Shape((CLIENT,)),
    Shape((f"for={CLIENT} for={LIE}",)),
    Shape((f"for = {CLIENT}",)),
    Shape(('for=""',)),
    Shape((f"fôr={CLIENT}",)),
    Shape((f"for={'1' * 5000}",)),
    Shape(('for="' + "\\" * 5001 + '"',)),
    Shape(("for=1;" * 80,)),
)
