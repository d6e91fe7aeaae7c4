"""Fixtures for tests of the join."""

from tests.support.feature_fixtures import *  # noqa: F403
