"""Which address is the client's: by one table, from requests and from sockets."""

from collections.abc import Callable
from typing import Any

import pytest
from django.test import RequestFactory
from hypothesis import example, given
from hypothesis import strategies as st

from django_throttle.exceptions import InvalidSetting
from django_throttle.identity import AsgiCaller, RequestCaller
from django_throttle.identity.address import MAX_HOPS, declared_proxies, parse

Caller = RequestCaller | AsgiCaller
Make = Callable[..., Caller]
PEER, PROXY, CLIENT, LIE = "10.0.0.1", "10.0.0.2", "203.0.113.9", "198.51.100.7"
NETWORKS = ("10.0.0.0/8", "fd00::/8")
NET = "2001:db8::/64"
NO_ADDRESSES = (
    "203.000.113.009~0313.0.0161.011~3405803785~0xcb007109~203.0.113~203.0.113.9.9~203.0.113.256~203.0.113.9/32"
    "~-203.0.113.9~203.0.113.9 198.51.100.7~203.0.113.9; 198.51.100.7~\"203.0.113.9\"~'203.0.113.9'~203.0.113.9:"
    "~203.0.113.9:port~203.0.113.9:1234567~203.0.113.9\x00~203.0.113.9\r\n~\u00b203.0.113.9~[203.0.113.9~2001:db8::1]"
    "~[]~[]:80~:80~1::2::3~:::~%~%eth0~localhost~example.com~unix:~for=203.0.113.9~2001:db8::7:123456~2001:db8::7:4653\u0663"
)
# The client when one proxy is declared, when two are, and when NETWORKS are; and the lines of which this holds: as they
# reach us from a trusted peer, several lines parted by "|". What is no address is nobody: the peer answers for it.
X_FORWARDED_FOR: dict[tuple[str, str, str], list[str]] = {
    (PEER, PEER, PEER): ["", "unknown", *NO_ADDRESSES.split("~"), "x" * 100_000, "1" * 100_000, ":" * 100_000],
    (CLIENT, PEER, CLIENT): [
        *(CLIENT, f" {CLIENT} ", f"|{CLIENT}", f",{CLIENT}", f"{CLIENT}:4711", "[::ffff:203.0.113.9]:80"),
        *("::ffff:203.0.113.9", "::ffff:cb00:7109", "64:ff9b::203.0.113.9"),
        *(f"unknown, {CLIENT}", f"{'x' * 5000}, {CLIENT}", f"{LIE},,{CLIENT}"),
    ],
    # Whatever stands further left than our proxies was written by the client.
    (CLIENT, LIE, CLIENT): [
        *(f"{LIE}, {CLIENT}", f"{LIE} ,\t{CLIENT}", f"1.1.1.1, 2.2.2.2, {LIE}, {CLIENT}"),
        *(f"{LIE}|{CLIENT}", f"1.1.1.1|{LIE}, {CLIENT}", f"{LIE}:1, {CLIENT}:2"),
    ],
    (CLIENT, "10.0.0.99", CLIENT): [f"10.0.0.99, {CLIENT}"],
    (CLIENT, CLIENT, CLIENT): [",".join([CLIENT] * 1000)],
    # Chains of our own proxies.
    (PROXY, CLIENT, CLIENT): [f"{CLIENT}, {PROXY}", f"{CLIENT}|{PROXY}", f"{CLIENT}, ::ffff:{PROXY}"],
    (PROXY, "10.0.0.3", CLIENT): [f"{CLIENT}, 10.0.0.3, {PROXY}"],
    (PROXY, "10.0.0.3", "10.0.0.3"): [f"10.0.0.3, {PROXY}"],
    (PROXY, PROXY, PROXY): [f"{CLIENT}{',10.0.0.2' * 100}"],
    ("fd00::/64", CLIENT, CLIENT): [f"{CLIENT}, fd00::2", f"{CLIENT}, [fd00::2]:443"],
    # A proxy that knows nothing must not make room for a lie; nor must one that hides its client.
    (PEER, CLIENT, PEER): [f"{CLIENT}|", f"{CLIENT},"],
    (PEER, LIE, PEER): [f"{LIE}, unknown"],
    (PROXY, PEER, PROXY): [f"{LIE}, unknown, {PROXY}"],
    # Notations of one address.
    (NET, PEER, NET): [
        *("2001:db8::1", "2001:0db8:0000:0000:0000:0000:0000:0001", "2001:db8::203.0.113.9", "2001:db8::1:443"),
        *("[2001:db8::1]:443", "2001:db8::1%eth0", "[2001:db8::1%eth0]:443", f"2001:db8::1%{'x' * 3000}"),
    ],
    ("2001:db8:0:1::/64", PEER, "2001:db8:0:1::/64"): ["2001:db8:0:1::1"],
    ("::/64", PEER, "::/64"): ["::1"],
}
FORWARDED: dict[tuple[str, str, str], list[str]] = {
    # What hides, what makes no sense, and a comma in what our proxy has quoted, which begins nothing.
    (PEER, PEER, PEER): [
        *("", "for=unknown", 'for="_hidden:_port"', CLIENT, 'for=""', f"for = {CLIENT}", f"fôr={CLIENT}"),
        *(f"for={CLIENT};for={LIE}", f"for={CLIENT} for={LIE}"),
        *(f"for={'1' * 5000}", 'for="' + "\\" * 5001 + '"', "for=1;" * 80),
        *(f'for={CLIENT};host="a,for={LIE};x=\\""', f'for={CLIENT};host="a, for={LIE};b=\\"c\\""'),
    ],
    # A quote that the client never closes swallows nothing of what our proxy adds.
    (CLIENT, PEER, CLIENT): [
        *(f"for={CLIENT}", f"For={CLIENT}", f'for="{CLIENT}:4711"', f"for={CLIENT}:4711", f"  for={CLIENT}\t"),
        *('for="\\2\\0\\3.0.113.9"', f"for={CLIENT};proto=https;by=10.0.0.1"),
        *(
            f'by=10.0.0.1;for={CLIENT};host="a.example"',
            f'for="{LIE}, for={CLIENT}',
            f'for={LIE};host="\\", for={CLIENT}',
        ),
    ],
    (NET, PEER, NET): ['for="[2001:db8::1]:443"', "for=[2001:db8::1]"],
    (CLIENT, LIE, CLIENT): [f"for={LIE}, for={CLIENT}", f"for={LIE}|for={CLIENT}"],
    (PROXY, CLIENT, CLIENT): [f"for={CLIENT}, for={PROXY}"],
    ("fd00::/64", CLIENT, CLIENT): [f'for={CLIENT}, for="[fd00::2]"'],
    (PEER, LIE, PEER): [f"for={LIE}, for=unknown", f"for={LIE}, proto=https"],
}
# A port always, and no brackets around IPv6.
CLOUDFRONT: dict[tuple[str, str, str], list[str]] = {
    (PEER, PEER, PEER): ["", "unknown"],
    (CLIENT, PEER, CLIENT): [f"{CLIENT}:46532", CLIENT],
    (NET, PEER, NET): [
        *("2001:db8::7:443", "[2001:db8::7]:443", "2001:db8::1, 2001:db8::7:8"),
        "2001:0db8:0000:0000:0000:8a2e:0370:7334:443",
    ],
}
SHAPES = {"X-Forwarded-For": X_FORWARDED_FOR, "Forwarded": FORWARDED, "CloudFront-Viewer-Address": CLOUDFRONT}


def request(peer: object, header: str, lines: tuple[str, ...]) -> RequestCaller:
    """As a WSGI server reports it: what has several lines is joined by commas, and bytes are Latin-1."""
    found = RequestFactory().get("/")
    found.META["REMOTE_ADDR"] = peer
    if lines:
        name = f"HTTP_{header.upper().replace('-', '_')}"
        found.META[name] = ",".join(line.encode().decode("latin-1") for line in lines)
    return RequestCaller(found)


def scope(peer: object, header: str, lines: tuple[str, ...]) -> AsgiCaller:
    """As an ASGI server reports it: each line for itself, among others."""
    headers = [
        (b"host", b"example"),
        *((header.lower().encode(), line.encode()) for line in lines),
        (b"accept", b"*/*"),
    ]
    return AsgiCaller({"client": None if peer is None else (peer, 1), "headers": headers})


BOTH = pytest.mark.parametrize("make", [request, scope], ids=["request", "scope"])


@pytest.fixture
def trust(settings: Any) -> Callable[..., None]:
    def trust(proxies: Any, header: str = "X-Forwarded-For", **others: Any) -> None:
        settings.DJANGO_THROTTLE = {"TRUSTED_PROXIES": proxies, "PROXY_HEADER": header, **others}

    return trust


@pytest.mark.row("A02")
@pytest.mark.parametrize(
    ("header", "lines", "clients"),
    [
        (header, lines, clients)
        for header, table in SHAPES.items()
        for clients, found in table.items()
        for lines in (None, *found)
        if lines is not None or clients == (PEER,) * 3
    ],
    ids=lambda value: ascii(value)[:60],
)
def test_a02_every_shape(header: str, lines: str | None, clients: Any, trust: Callable[..., None]) -> None:
    one, two, networks = clients
    for proxies, client in [(None, PEER), ((), PEER), (0, PEER), (1, one), (2, two), (NETWORKS, networks)]:
        trust(proxies, header)
        for make in (request, scope):
            caller = make(PEER, header, () if lines is None else tuple(lines.split("|")))
            assert caller.ident("ip") == f"ip:{client}", (proxies, make.__name__)


@BOTH
class TestOneHeader:
    HEADERS = ("X-Forwarded-For", "Forwarded", "X-Real-IP", "CF-Connecting-IP", "True-Client-IP", "X-Client-IP")

    @pytest.mark.row("A03")
    @pytest.mark.parametrize("named", HEADERS)
    def test_a03_only_the_one_that_is_named_is_read(self, make: Make, named: str, trust: Callable[..., None]) -> None:
        trust(NETWORKS, named)
        for header in self.HEADERS:
            said = f"for={CLIENT}" if header == "Forwarded" else CLIENT
            expected = CLIENT if header == named else PEER
            assert make(PEER, header, (said,)).ident("ip") == f"ip:{expected}"

    def test_an_underscore_is_no_hyphen(self, make: Make, trust: Callable[..., None]) -> None:
        trust(1)
        if make is scope:  # servers and Django see to it for requests
            assert scope(PEER, "X_Forwarded_For", (LIE,)).ident("ip") == f"ip:{PEER}"


@BOTH
class TestPeers:
    @pytest.mark.row("A04")
    @pytest.mark.parametrize("peer", ["192.0.2.1", "11.0.0.1", "2001:db8:9::1", "::ffff:192.0.2.1", "9.255.255.255"])
    def test_a04_who_comes_around_the_proxy_is_not_believed(
        self, make: Make, peer: str, trust: Callable[..., None]
    ) -> None:
        trust(NETWORKS)
        assert make(peer, "X-Forwarded-For", (CLIENT,)).ident("ip") == make(peer, "Host", ()).ident("ip")

    @pytest.mark.parametrize(
        ("peer", "network"),
        [
            *((peer, None) for peer in ("10.0.0.1", "::ffff:10.0.0.1", "::ffff:a00:1", "10.0.0.1:55", "[FD00::1]")),
            *(("10.0.0.1", network) for network in ("::ffff:10.0.0.0/104", "::ffff:a00:1/128")),
        ],
    )
    def test_a_proxy_is_known_in_every_notation(
        self, make: Make, peer: str, network: str | None, trust: Callable[..., None]
    ) -> None:
        trust([network] if network else NETWORKS)
        assert make(peer, "X-Forwarded-For", (CLIENT,)).ident("ip") == f"ip:{CLIENT}"

    @pytest.mark.row("A10")
    @pytest.mark.parametrize("proxies", [1, NETWORKS, ["unix"]], ids=str)
    @pytest.mark.parametrize("peer", ["", None, "unix:", "unix:/run/site.sock", "localhost", "b''"])
    def test_a10_behind_a_proxy_a_unix_socket_is_a_proxy_s(
        self, make: Make, peer: object, proxies: Any, trust: Callable[..., None]
    ) -> None:
        trust(proxies)
        assert make(peer, "X-Forwarded-For", (f"{LIE}, {CLIENT}",)).ident("ip") == f"ip:{CLIENT}"
        assert make(peer, "X-Forwarded-For", ("unknown",)).ident("ip") is None

    @pytest.mark.row("A10")
    @pytest.mark.parametrize(
        ("peer", "proxies"),
        [
            *(("", proxies) for proxies in (None, 0, ())),
            *((peer, NETWORKS) for peer in ("testserver", "unixoid", "localhost.evil.example", "x" * 10_000)),
        ],
        ids=lambda value: str(value)[:20],
    )
    def test_a10_else_it_has_no_address(self, make: Make, peer: str, proxies: Any, trust: Callable[..., None]) -> None:
        trust(proxies)
        assert make(peer, "X-Forwarded-For", (CLIENT,)).ident("ip") is None


class TestSettings:
    @pytest.mark.row("A04")
    @pytest.mark.parametrize(
        "given",
        [
            ["10.0.0.0/33"], ["10.0.0.7/8"], ["*"], ["0.0.0.0/0"], ["::/0"], ["::ffff:0.0.0.0/96"],
            ["10.0.0.0/8", "nonsense"], [""], [5], [["10.0.0.0/8"]], "10.0.0.0/8", "*", True, -1, MAX_HOPS + 1, 1.0,
        ],
        ids=str,
    )  # fmt: skip
    def test_a04_what_makes_no_sense_trusts_nobody(self, given: Any, trust: Callable[..., None]) -> None:
        trust(given)
        with pytest.raises(InvalidSetting, match="TRUSTED_PROXIES"):
            request(PEER, "X-Forwarded-For", (CLIENT,)).ident("ip")


MEGABYTES = {sign: sign * (10**6 // len(sign)) for sign in ("1", ":", ",", "[", "%", " ", '"', "for=", "10.0.0.2,")}


@pytest.mark.row("A09")
@BOTH
@pytest.mark.parametrize("named", ["X-Forwarded-For", "Forwarded"])
@pytest.mark.parametrize("sign", MEGABYTES)
def test_a09_an_endless_header_takes_no_time(
    make: Make, named: str, sign: str, trust: Callable[..., None], stopwatch: Any, figure: Callable[..., None]
) -> None:
    trust(NETWORKS, named)
    caller = make(PEER, named, (MEGABYTES[sign],))
    with stopwatch(most=0.05) as watch:
        caller.ident("ip")
    figure("a header", watch.seconds * 1000, "ms")


ADDRESSES = st.one_of(st.ip_addresses(v=4).map(str), st.ip_addresses(v=6).map(str))
NONSENSE = st.text(max_size=80) | st.from_regex(r"[0-9a-f:.%\[\]\" ,;=]{0,80}", fullmatch=True)


@given(left=st.lists(ADDRESSES | NONSENSE, max_size=6), client=st.ip_addresses(v=4).map(str))
@example(left=['for="'], client="203.0.113.9")
def test_whatever_a_client_writes_it_is_itself(left: list[str], client: str) -> None:
    for header, dress in (("X-Forwarded-For", "{}"), ("Forwarded", "for={}")):
        said = ", ".join([*map(dress.format, left), dress.format(client)])
        for proxies in (declared_proxies(1), declared_proxies(["10.0.0.0/8"])):
            found = proxies.client(lambda said=said: said, header, parse(PEER))  # type: ignore[misc]
            if proxies.count or not client.startswith("10."):
                assert str(found) == client
