"""Agents that share queues, on RabbitMQ: the number of queues and heartbeats, and boots while processes die.

The large run takes minutes: pytest -m soak tests/integration/test_shared_agent_queues_live.py -s
"""

import asyncio
import dataclasses
import json
import os
import resource
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from berth.kit import BootOptions, Settings, boot_request
from berth.simulated_agents import agents
from bus import topics
from bus.clock import monotonic
from bus.delivery.runner import Listener
from bus.guests import GuestsAsked
from bus.host_health import every_health
from bus.messages import BuildEnded
from deploy.servers import RabbitMQ
from features.shared_queues.messages import HEARTBEATS_MERGED
from features.shared_queues.tests.integration.agent_fleet import (
    MUTE,
    PER_CELL,
    FleetSupervisor,
    fleet_settings,
)
from tests.support.berth_processes import Running, running, settled

pytestmark = [pytest.mark.services, pytest.mark.slow]


@dataclass(frozen=True)
class Region:
    cells: int
    agents_per_cell: int  # each with one host
    heartbeat: float
    boots: int
    count_seconds: float  # in which heartbeats are counted
    build_time: str
    patience: float

    @property
    def agents(self) -> int:
        return self.cells * self.agents_per_cell


SMALL = Region(2, 6, 1.0, 12, 3.0, "uniform:0.5,2", 100.0)
LARGE = Region(4, 250, 10.0, 1000, 60.0, "uniform:1,8", 1500.0)


@pytest.mark.soak
@pytest.mark.parametrize("region", [pytest.param(SMALL, id="12"), pytest.param(LARGE, id="1000")])
async def test_boots_end_once_while_gateways_and_agents_are_killed(
    region: Region, database_url: str, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PER_CELL, str(region.agents_per_cell))
    with RabbitMQ(directory / "rabbitmq") as rabbitmq:
        settings = Settings().having(
            amqp_url=rabbitmq.url,
            database_url=database_url,
            state_dir=str(directory / "state"),
            cells=tuple(f"c{number + 1}" for number in range(region.cells)),
            simulator={"hosts": region.agents, "build_time": region.build_time},
            heartbeat=region.heartbeat,
            agent_queues="shared",
            database_pool=2,
        )
        fleet = agents(fleet_settings(settings))
        [mute] = fleet[3].hosts
        monkeypatch.setenv(MUTE, fleet[3].agent)
        async with asyncio.timeout(region.patience), running(settings, FleetSupervisor) as berth:
            await _heard(berth, mute.root)
            assert quorum_queues(rabbitmq) == 73 + 29 * region.cells  # as docs/scale.md says
            messages, reports = await heartbeats(berth, region.count_seconds)
            assert messages <= min(100, 4 * region.cells)  # a second
            expected = (region.agents - 1) / region.heartbeat
            assert 0.8 * expected <= reports <= 1.5 * expected
            ends = await _boot_while_killing(berth, region)
            assert Counter(end.status for end in ends.values()) == {"active": region.boots}
            assert mute.host not in {end.host for end in ends.values()}
            await _every_guest_once(berth, ends)
            found = await settled(settings, builds=region.boots)
            assert found.clean, found


def quorum_queues(rabbitmq: RabbitMQ) -> int:
    listed = json.loads(rabbitmq.control("list_queues", "name", "type", "--formatter", "json"))
    kinds = Counter("quorum" if "quorum" in queue["type"] else "classic" for queue in listed)
    print(f"queues: {dict(kinds)}")
    return kinds["quorum"]


async def _heard(berth: Running, mute: str) -> None:
    """Wait until the hosts of all agents are up, except that of the agent without heartbeats."""
    ask = berth.bus.asker(topics.HOST_HEALTH)
    while True:
        found = {health.root: health.availability async for health in every_health(ask)}
        if found == {mute: "down"}:
            return
        await asyncio.sleep(0.5)


async def heartbeats(berth: Running, seconds: float) -> tuple[float, float]:
    """Return the messages with heartbeats, and the heartbeats in them, that a scheduler gets in a second."""
    merged = await berth.bus.listen(HEARTBEATS_MERGED.at())
    single = await berth.bus.listen(topics.HOST_REPORTED.at())
    messages = reports = 0

    async def count_merged() -> None:
        nonlocal messages, reports
        while True:
            messages, reports = messages + 1, reports + len((await merged.get()).reports)

    async def count_single() -> None:
        nonlocal messages
        while True:
            await single.get()
            messages += 1

    async with asyncio.TaskGroup() as group:
        counting = [group.create_task(count_merged()), group.create_task(count_single())]
        await asyncio.sleep(seconds)  # the measured time
        for task in counting:
            task.cancel()
    await merged.stop()
    await single.stop()
    print(f"a second: {messages / seconds:.1f} messages with {reports / seconds:.1f} heartbeats")
    return messages / seconds, reports / seconds


async def _boot_while_killing(berth: Running, region: Region) -> dict[str, BuildEnded]:
    ended = await berth.bus.listen(topics.BUILD_ENDED.at())
    started = monotonic()
    # all agents of two cells are away while their process starts again
    options = BootOptions(vcpus=1, memory_mb=64, disk_gb=1)
    requests = [boot_request(dataclasses.replace(options, wait="1h")) for _ in range(region.boots)]
    victims = [name for name in berth.starts() if name.startswith(("conductor.", "compute."))]
    kills = {(place + 1) * region.boots // (len(victims) + 1): name for place, name in enumerate(victims)}
    ends: dict[str, BuildEnded] = {}
    async with _receiving(ended, ends):
        for number, request in enumerate(requests):
            await berth.bus.publish(request)
            if number in kills:
                await berth.kill(kills[number])
        wanted = {build for request in requests for build in request.instances}
        while wanted - ends.keys():
            await asyncio.sleep(0.2)
        print(f"{region.boots} boots in {monotonic() - started:.0f} s; starts: {berth.starts()}")
        assert all(berth.starts()[name] > 1 for name in victims)
    return ends


@asynccontextmanager
async def _receiving(ended: Listener[BuildEnded], ends: dict[str, BuildEnded]) -> AsyncIterator[None]:
    async def receive() -> None:
        while True:
            end = await ended.get()
            # published again after a crash: the same end
            assert ends.setdefault(end.build, end) == end

    async with asyncio.TaskGroup() as group:
        receiving = group.create_task(receive())
        yield
        receiving.cancel()


async def _every_guest_once(berth: Running, ends: dict[str, BuildEnded]) -> None:
    """Ask every agent for its guests, through the gateways: each build has one guest, on its host."""
    reported = await berth.bus.listen(topics.AGENT_GUESTS.at(reply_to="test"))
    fleet = agents(fleet_settings(berth.settings))
    for agent in fleet:
        await berth.bus.publish(GuestsAsked(cell=agent.cell, agent=agent.agent, builds=(), reply_to="test"))
    answered, guests = set[str](), dict[str, set[str]]()
    while len(answered) < len(fleet):
        answer = await reported.get()
        answered.add(answer.agent)
        for guest in answer.guests:
            guests.setdefault(guest.build, set()).add(guest.root)
    hosts = {host.root: host.host for agent in fleet for host in agent.hosts}
    on = {build: {hosts[root] for root in roots} for build, roots in guests.items()}
    assert on == {build: {end.host} for build, end in ends.items()}
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
    print(f"{sum(map(len, on.values()))} guests; largest child so far {peak} MB; {os.getloadavg()}")
