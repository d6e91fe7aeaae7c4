"""The time limit of tests (tests/support/overdue.py)."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress

import pytest

from tests.support.overdue import Overdue, limited


def a_lock_that_nobody_opens() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


async def nothing_comes() -> None:
    await asyncio.get_running_loop().create_future()


async def never_idle() -> None:
    while True:
        with suppress(Exception):
            await asyncio.sleep(0)


@pytest.mark.parametrize(
    "waits",
    [a_lock_that_nobody_opens, lambda: asyncio.run(nothing_comes()), lambda: asyncio.run(never_idle())],
    ids=["a lock", "a future", "a loop"],
)
def test_it_is_interrupted_whatever_it_does(
    waits: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Overdue, match="what waits is not over after"), limited("what waits", 0.1):
        waits()
    assert "test_overdue.py" in capsys.readouterr().err  # where it was


def test_cleanup_that_hangs_is_interrupted_too() -> None:
    with pytest.raises(Overdue), limited("what waits", 0.05):
        try:
            a_lock_that_nobody_opens()
        finally:
            a_lock_that_nobody_opens()


async def test_what_is_over_in_time_is_left_alone() -> None:
    with limited("what is quick", 0.05):
        pass
    await asyncio.sleep(0.1)
