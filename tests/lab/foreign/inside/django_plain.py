"""Django's own settings for its suite; what becomes of each test is written down."""

from test_sqlite import *  # noqa: F403

TEST_RUNNER = "recording_runner.Runner"
