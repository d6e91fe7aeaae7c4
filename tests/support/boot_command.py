"""The request that the options of `berth boot` describe, before it is published."""

from collections.abc import Iterator
from typing import Any

import pytest

from berth.commands import builds
from berth.kit.named_objects import ByName
from bus.messages import BuildRequested
from tests.support.command_line import typed


class Published:
    request: BuildRequested
    names: ByName
    followed: bool
    timeout: float


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> Iterator[Published]:
    published = Published()

    async def boot(settings: object, request: BuildRequested, wait: bool, timeout: float, *more: Any) -> int:
        published.request, published.followed, published.timeout = request, wait, timeout
        published.names = more[-1]
        return 0

    monkeypatch.setattr(builds, "boot", boot)
    yield published


def reply(*options: str) -> tuple[int, str]:
    """Return the exit code of `berth boot`, and all that it printed."""
    ran = typed("boot", *options)
    if ran.exception is not None and not isinstance(ran.exception, SystemExit):
        return 1, str(ran.exception)
    return ran.exit_code, ran.output + ran.stderr
