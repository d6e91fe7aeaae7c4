"""The watch of a process: a blocked event loop ends it, stuck readers are reported, SIGUSR1 logs a dump."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

import pytest

from berth.process_watch import EXIT_BLOCKED, ProcessWatch, WatchLimits, watched
from bus import topics
from bus.delivery.queue_reader import READERS
from bus.delivery.runner import Bus
from bus.local import LocalBroker, LocalTransport
from bus.messages import BuildCancelRequested
from bus.worker import Worker, on
from tests.support.berth_processes import ROOT
from tests.support.ids import uid
from tests.support.waiting import until

BLOCKED = """
import asyncio, logging, time
from berth.process_watch import WatchLimits, watched

logging.basicConfig()

async def endless_search():
    with watched(WatchLimits(blocked=0.5, warn=0.2, period=0.05)):
        await asyncio.sleep(0.2)
        while True:  # a bug
            time.sleep(0.01)

asyncio.run(endless_search())
"""


def test_a_process_with_a_blocked_event_loop_logs_its_stack_and_ends() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", BLOCKED], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == EXIT_BLOCKED, ran.stderr
    assert "the process ends with exit code 70" in ran.stderr
    assert "in endless_search" in ran.stderr


async def test_a_short_block_is_logged_and_does_not_end_the_process(caplog: pytest.LogCaptureFixture) -> None:
    ends: list[int] = []
    limits = WatchLimits(blocked=60.0, warn=0.05, period=0.02)
    watch = ProcessWatch(asyncio.get_running_loop(), limits, ends.append)
    watch.start()
    await asyncio.sleep(0.05)
    time.sleep(0.3)  # noqa: ASYNC251  the block
    watch.stop()
    assert ends == []
    assert [record for record in caplog.records if "the event loop has been blocked" in record.message]
    assert "test_a_short_block_is_logged" in caplog.text


CANCELS = [BuildCancelRequested(build=uid(number), reply_to="client") for number in range(4)]


async def test_a_reader_with_a_stuck_handler_is_reported_with_its_message(
    caplog: pytest.LogCaptureFixture,
) -> None:
    release, stopping = asyncio.Event(), asyncio.Event()

    async def handle(message: BuildCancelRequested) -> None:
        await release.wait()

    worker = Worker("scheduler", consumes=[on(topics.BUILD_CANCEL, handle, concurrency=1)])
    limits = WatchLimits(stuck=0.2, period=0.02)
    known = set(READERS)  # of other tests
    async with Bus(LocalTransport(LocalBroker())) as bus, asyncio.TaskGroup() as group:
        group.create_task(bus.serve(worker, stopping))
        await until(lambda: not known.issuperset(READERS))
        with watched(limits):
            await bus.publish(*CANCELS)
            await until(lambda: _reports(caplog))
            assert "1 of 1 handler calls are running" in _reports(caplog)[0]
            assert "BuildCancelRequested" in _reports(caplog)[0]
            os.kill(os.getpid(), signal.SIGUSR1)
            await until(lambda: "the state of process" in caplog.text)
        release.set()
        stopping.set()
    state = caplog.text.partition("the state of process")[2]
    assert (
        "scheduler:build.cancel: 1 messages wait in this process, 1 of 1 handler calls are running" in state
    )
    assert "BuildCancelRequested" in state
    assert "thread MainThread:" in state
    assert "QueueReader._handle at" in state and "handle" in state
    assert known.issuperset(READERS)


def _reports(caplog: pytest.LogCaptureFixture) -> Sequence[str]:
    return [record.getMessage() for record in caplog.records if "took no message" in record.getMessage()]
