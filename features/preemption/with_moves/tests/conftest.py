"""Fixtures for tests of the feature."""

from tests.support.feature_fixtures import *  # noqa: F403
