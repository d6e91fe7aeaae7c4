"""Random messages of every kind stop no worker: a boot becomes active within a second afterwards."""

import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from berth.commands.run import ready
from berth.embedded import embedded
from berth.operations.boot_options import BootOptions, boot_request
from berth.settings import Settings
from bus import topics
from bus.clock import monotonic
from bus.delivery.runner import Bus
from bus.messages import BuildRequested
from bus.queries import WhatIf
from bus.requests import Flavor
from bus.vocabulary import MAX_INT
from tests.support.berth_processes import running
from tests.support.random_messages import KINDS, RandomMessages
from tests.support.waiting import in_time

FEW = 8 * len(KINDS)
MANY = 20_000
AT_ONCE = 50
SECONDS = 1.0
LARGEST = 500  # megabytes of one worker
CLOUD: dict[str, Any] = {"cells": ("c1",), "hosts": 20, "build_time": "constant:0.01"}


ID = "00000000-0000-4000-8000-00000000000a"
ABSURD = BuildRequested(request=ID, instances=(ID,), flavor=Flavor(name="x", vcpus=MAX_INT))


async def publish(bus: Bus, messages: RandomMessages, count: int) -> None:
    """Publish a flavor of as many processors as a number has room for, and random messages."""
    await bus.publish(ABSURD)
    answer = await bus.asker(topics.WHAT_IF)(WhatIf(request=ABSURD, room=True))
    assert not answer.fits
    for start in range(0, count, AT_ONCE):
        some = [messages.envelope(number) for number in range(start, min(start + AT_ONCE, count))]
        await bus.transport.publish(some, expected=[False] * len(some))


async def boot(bus: Bus, patience: float = 60.0) -> float:
    """Return the seconds until a boot is active."""
    request = replace(
        boot_request(BootOptions(vcpus=1, memory_mb=64, disk_gb=1, flavor="small")), reply_to=bus.clock.uuid()
    )
    ended = await bus.listen(topics.BUILD_ENDED.at(reply_to=request.reply_to))
    began = monotonic()
    await bus.publish(request)
    end = await in_time(ended.get(), patience)
    await ended.stop()
    assert end.status == "active", end
    return monotonic() - began


def messages(seed: int) -> RandomMessages:
    return RandomMessages(seed, cells=("c1",), agents=("c1-agent1", "nobody"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
async def test_a_boot_is_active_within_a_second_after_random_messages(seed: int, tmp_path: Path) -> None:
    settings = Settings().having(state_dir=str(tmp_path), **CLOUD)
    async with embedded(settings) as berth:
        await ready(berth.bus, settings)
        await publish(berth.bus, messages(seed), FEW)
        await boot(berth.bus)  # waits until what is queued before it is handled
        assert await boot(berth.bus) < SECONDS


@pytest.mark.soak
@pytest.mark.services
async def test_20_000_random_messages_restart_no_worker_and_fill_no_memory(
    amqp_url: str, database_url: str, bus_name: str
) -> None:
    settings = Settings().having(
        amqp_url=amqp_url,
        database_url=database_url,
        exchange=bus_name,
        control_room_http="127.0.0.1:0",
        **CLOUD,
    )
    async with running(settings) as berth:
        await publish(berth.bus, messages(3), MANY)
        await boot(berth.bus, 300.0)  # waits until what is queued before it is handled
        seconds = await boot(berth.bus)
        peaks = {name: peak_megabytes(pid) for name, (pid, _) in berth.supervisor.processes().items()}
        assert seconds < SECONDS
        assert set(berth.starts().values()) == {1}
        assert all(peak < LARGEST for peak in peaks.values()), peaks


def peak_megabytes(pid: int) -> int:
    """Return the largest resident memory that this process ever had."""
    (kilobytes,) = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(kilobytes) // 1024
