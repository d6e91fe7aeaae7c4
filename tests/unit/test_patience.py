"""Limits of tests: the time in which a process waits for a processor does not count."""

import asyncio

import pytest

from tests.support import waiting
from tests.support.waiting import Patience, patience


class BusyMachine:
    """A machine whose clock, and whose record of waits for a processor, a test sets."""

    def __init__(self) -> None:
        self.now, self.waited = 100.0, 7.0

    def patience(self, seconds: float) -> Patience:
        return Patience(seconds, lambda: self.now, lambda: self.waited)


def test_time_without_a_processor_is_not_counted() -> None:
    machine = BusyMachine()
    limited = machine.patience(60.0)
    machine.now, machine.waited = 300.0, 187.0  # 200 s later, of which the process waited for 180 s
    assert limited.left() == 40.0


def test_time_in_which_the_process_could_run_is_counted() -> None:
    machine = BusyMachine()
    limited = machine.patience(60.0)
    machine.now += 61.0
    assert limited.left() == -1.0


def test_the_end_of_a_child_process_shortens_no_limit() -> None:
    machine = BusyMachine()
    limited = machine.patience(60.0)
    machine.waited = 0.0  # the record of the child that waited longest is gone
    assert limited.left() == 60.0


async def test_a_test_that_waits_forever_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "processor_wait", lambda: 0.0)
    with pytest.raises(TimeoutError):
        async with patience(0.01):
            await asyncio.Event().wait()


async def test_a_starved_test_gets_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = iter([0.0, *[0.03] * 10])
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(waiting, "processor_wait", lambda: next(waits))
    began = loop.time()
    with pytest.raises(TimeoutError):
        async with patience(0.01):
            await asyncio.Event().wait()
    assert loop.time() - began >= 0.04
