"""Fixtures for tests of several features."""

from tests.support.feature_fixtures import *  # noqa: F403
