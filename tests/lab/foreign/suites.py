"""The suites: where each comes from, how it is run, and what of the folder ``inside`` runs in its own process."""

from dataclasses import dataclass, field

# Newer than what carries tests in its source distribution are: Ninja 1.7. Channels and adrf carry none.
VERSIONS = {
    "channels": "4.3.2",
    "channels-redis": "4.3.0",
    "django": "5.2.19",
    "django-ninja": "1.6.2",
    "djangochannelsrestframework": "1.3.0",
    "djangorestframework": "3.18.3",
    "limits": "5.8.0",
}
# What the suites themselves need; without these they leave tests out.
NEEDED = (
    "async-timeout", "cryptography", "daphne", "dj-database-url", "django-filter", "django-guardian<3.6", "inflection",
    "markdown", "psycopg2-binary", "pygments", "pytest>=9,<10", "pytest-asyncio>=1,<2", "pytest-django>=4.11,<5",
    "pytest-lazy-fixtures", "pytest-timeout", "pyyaml", "requests", "uritemplate",
)  # fmt: skip
REQUIREMENTS = (*(f"{name}=={version}" for name, version in VERSIONS.items()), *NEEDED)
PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "recording")
HEADERS = "draft-11"
EXTRAS = "channels,drf"


@dataclass(frozen=True, kw_only=True)
class Suite:
    """A suite, or a part of one; ``plain`` and ``throttled`` are options, ``tests`` what is run below ``folder``."""

    title: str
    distribution: str
    way: str
    tests: tuple[str, ...]
    least: int  # how many tests pass, or a few fewer
    decisions: int  # how many are made at least with us in the way
    command: tuple[str, ...] = PYTEST
    plain: tuple[str, ...] = ()
    throttled: tuple[str, ...] = ()
    folder: str = "."
    key: str = "ip"
    headers: str = HEADERS
    lacks: str = ""  # a folder inside: what the source distribution leaves out of its tests
    environ: dict[str, str] = field(default_factory=dict)
    apart: dict[str, str] = field(default_factory=dict)  # names of tests that cannot apply, and why
    sentinel: bool = False  # it wants one

    @property
    def version(self) -> str:
        return VERSIONS[self.distribution]


def django(title: str, labels: str, **options: object) -> Suite:
    return Suite(
        title=f"Django: {title}",
        distribution="django",
        way="The middleware, innermost, in every test's ``MIDDLEWARE``",
        tests=tuple(labels.split()),
        command=("runtests.py", "--parallel=1", "--verbosity=0"),
        plain=("--settings=django_plain",),
        throttled=("--settings=django_throttled",),
        folder="tests",
        **options,  # type: ignore[arg-type]
    )


FLOOR = "a fraction of a call that has not left the window yet is let in, by rounding it down; ours is not"
SUITES = {
    "rest-framework": Suite(
        title="REST framework",
        distribution="djangorestframework",
        way="``RuleThrottle`` and two drop-ins as ``DEFAULT_THROTTLE_CLASSES``, and the middleware",
        tests=("tests",),
        throttled=("-p", "with_rest_framework"),
        least=1600,
        decisions=1000,
    ),
    "django": django(
        "views, middleware, sessions, auth, admin, static files",
        "view_tests middleware middleware_exceptions sessions_tests auth_tests admin_views admin_docs admin_changelist "
        "staticfiles_tests",
        least=2450,
        decisions=1500,
    ),
    "django-handlers": django(
        "handlers, servers, test client, uploads, and more (``RATELIMIT_HEADERS`` off: tests compare all fields)",
        "asgi conditional_processing context_processors csrf_tests decorators file_uploads flatpages_tests "
        "generic_views handlers logging_tests messages_tests redirects_tests requests_tests responses servers "
        "signed_cookies_tests sitemaps_tests syndication_tests test_client test_client_regress urlpatterns "
        "urlpatterns_reverse wsgi",
        headers="off",
        least=1475,
        decisions=500,
    ),
    "ninja": Suite(
        title="Ninja",
        distribution="django-ninja",
        way="``@throttle`` around every operation but generators, and the middleware",
        tests=("tests",),
        plain=("-c", "tests/pytest.ini", "--rootdir=."),
        throttled=("-p", "with_ninja", "-c", "tests/pytest.ini", "--rootdir=."),
        least=770,
        decisions=500,
    ),
    "dcrf": Suite(
        title="djangochannelsrestframework",
        distribution="djangochannelsrestframework",
        way="The mixin left of Channels' consumers, and ``RuleThrottle`` in the views that it serves",
        tests=("tests",),
        plain=("--ds=dcrf_plain",),
        throttled=("-p", "with_channels", "--ds=dcrf_throttled"),
        lacks="dcrf_lacks",
        environ={"FOREIGN_COLLECT": "1"},
        least=50,
        decisions=50,
    ),
    "channels-redis": Suite(
        title="channels_redis",
        distribution="channels-redis",
        way="``throttled_group_send`` and the counting of members, in its layers' methods",
        tests=("tests",),
        plain=("-p", "channels_redis_elsewhere"),
        throttled=("-p", "channels_redis_elsewhere", "-p", "with_channels_redis"),
        sentinel=True,
        least=110,
        decisions=50,
    ),
    "limits": Suite(
        title="limits: strategies",
        distribution="limits",
        way="In the place of its strategies, sync and async: our engine, on its memory and on Redis",
        tests=("tests/test_strategy.py", "tests/aio/test_strategy.py"),
        command=(*PYTEST, "-p", "no:django", "--noconftest", "-c", "limits.ini", "-m", "memory or redis"),
        plain=("-p", "limits_plain"),
        throttled=("-p", "limits_plain", "-p", "with_limits"),
        lacks="limits_lacks",
        environ={"ASYNC_REDIS_IMPLEMENTATION": "redispy"},
        apart={
            "test_sliding_window_counter_previous_window": FLOOR,
            "test_sliding_window_counter_stats": FLOOR,
            "test_moving_window_huge_cost": "a log of a million calls; a rule's keeps 10,000 at most",
        },
        least=60,
        decisions=300,
    ),
}
