"""Fixtures of several unit tests: an Ironic in a dictionary, waiting without time."""

import asyncio

import pytest

from tests.support.fake_ironic import FakeIronic


@pytest.fixture
def ironic() -> FakeIronic:
    """With one node."""
    fake = FakeIronic()
    fake.have(1)
    return fake


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    return waited
