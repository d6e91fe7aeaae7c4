"""Fixtures for tests of the feature."""

import pytest

from features.moves import plans
from tests.support.feature_fixtures import *  # noqa: F403


@pytest.fixture
def steps_follow_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each step of a plan follow the last one at once."""
    monkeypatch.setattr(plans, "STEP_SECONDS", 0.05)
