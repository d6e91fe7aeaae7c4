"""`berth audit check` in a region with an instance that was moved."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from berth.kit import Settings
from tests.support.command_line import CommandLine
from tests.support.healed_region import region_with_moved_instance


@pytest.fixture
async def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Settings]:
    async with region_with_moved_instance(tmp_path, monkeypatch) as settings:
        yield settings


@pytest.fixture
def berth(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Awaitable[str]]:
    return CommandLine("audit heal", monkeypatch, capsys)
