"""A region of processes whose instances move while its processes are killed."""

import asyncio
import os
import signal
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from berth import simulated_agents
from berth.kit import Settings
from berth.kit.testing import audit
from bus import topics
from bus.clock import Clock
from bus.messages import BuildEnded, BuildRequested
from bus.requests import Flavor, Image
from compute_sim.testing import FaultPlan, MoveFaults
from features.moves.messages import (
    FIND_MOVES,
    MOVE_ENDED,
    MOVE_REFUSED,
    PLANS,
    FindMoves,
    MoveEnd,
    MoveEnded,
    MoveKind,
    MovePhase,
    MoveRefused,
    MoveRequested,
    MoveStands,
    MoveSteered,
)
from tests.support.berth_processes import Running, alive, running
from tests.support.waiting import receive_all, until
from tests.support.watched_agents import NOTES, RunningNow, WatchingSupervisor, note


class AgentNotes:
    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def path(self, agent: str) -> Path:
        (found,) = self.directory.glob(f"{agent}-*")
        return found

    def of(self, agent: str) -> list[RunningNow]:
        lines = self.path(agent).read_bytes().splitlines()
        return [msgspec.json.decode(line, type=RunningNow) for line in lines]

    def stands_still(self, agent: str) -> None:
        note(self.path(agent), ())

    def now(self) -> dict[str, list[tuple[int, str]]]:
        found = defaultdict(list)
        for path in self.directory.iterdir():
            for build, attempt, root in self.of(path.name.rpartition("-")[0])[-1].running:
                found[build].append((attempt, root))
        return dict(found)

    def at_once(self, build: str) -> Iterator[str]:
        """Each time when two guests of this build ran, anywhere."""
        events: list[tuple[float, str, tuple[tuple[str, int, str], ...]]] = []
        for path in self.directory.iterdir():
            agent = path.name.rpartition("-")[0]
            events += [(now.at, agent, now.running) for now in self.of(agent)]
        there: dict[str, tuple[tuple[str, int, str], ...]] = {}
        for at, agent, now in sorted(events):
            there[agent] = now
            its = [
                f"{attempt} on {root}" for on in there.values() for one, attempt, root in on if one == build
            ]
            if len(its) > 1:
                yield f"at {at:.3f} of {build} {' and '.join(its)}"


CELL = "c1"
SOURCE, DESTINATION = "c1-agent1", "c1-agent2"
AGENT_OF = {f"compute.{CELL}.{agent}": agent for agent in (SOURCE, DESTINATION)}
SMALL, LARGE = (Flavor(name=f"of {vcpus}", vcpus=vcpus, memory_mb=64, disk_gb=1) for vcpus in (1, 2))
SECONDS = 0.3  # of each phase
SENDING: tuple[MovePhase, ...] = ("prepare", "send", "start")


@dataclass(frozen=True)
class Errand:
    """A move, the phase in which the processes are killed, and the expected result."""

    kind: MoveKind
    killed_in: str
    phases: tuple[str, ...]
    end: MoveEnd = "done"
    at: str = DESTINATION  # the agent
    fails: str = ""  # the phase
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def begins(self) -> float:
        """Return the seconds before the kill at which the move is requested."""
        return (self.phases.index(self.killed_in) + 0.5) * SECONDS


class MovingSite:
    def __init__(self, berth: Running, notes: AgentNotes) -> None:
        self.berth, self.bus, self.settings, self.notes = berth, berth.bus, berth.settings, notes
        self.clock = Clock()
        agents = {agent.agent: agent.hosts for agent in simulated_agents.agents(berth.settings)}
        self.hosts = {agent: [host.host for host in hosts] for agent, hosts in agents.items()}
        self.agent_of = {host.root: agent for agent, hosts in agents.items() for host in hosts}
        self.builds: dict[str, BuildEnded] = {}
        self.ends: dict[str, list[MoveEnded]] = defaultdict(list)
        self.refused: dict[str, MoveRefused] = {}

    async def listen(self, group: asyncio.TaskGroup) -> list[asyncio.Task[None]]:
        builds = await self.bus.listen(topics.BUILD_ENDED.at())
        ends = await self.bus.listen(MOVE_ENDED.at())
        of_plans = await self.bus.listen(MOVE_ENDED.at(reply_to=PLANS))
        refusals = await self.bus.listen(MOVE_REFUSED.at())
        takers = (
            receive_all(builds, lambda end: self.builds.setdefault(end.build, end)),
            receive_all(ends, lambda end: self.ends[end.move].append(end)),
            receive_all(of_plans, lambda end: self.ends[end.move].append(end)),
            receive_all(refusals, lambda refusal: self.refused.update({refusal.move: refusal})),
        )
        return [group.create_task(taker) for taker in takers]

    async def boot(self, count: int, host: str) -> list[str]:
        builds = [self.clock.uuid() for _ in range(count)]
        image = Image(name="debian")
        await self.bus.publish(
            *[
                BuildRequested(request=build, instances=(build,), flavor=SMALL, image=image, forced_host=host)
                for build in builds
            ]
        )
        await until(lambda: {*builds} <= self.builds.keys(), f"{count} built on {host}")
        assert {self.builds[build].status for build in builds} == {"active"}
        return builds

    def move_that_fails(self, phase: str) -> str:
        """Return the id of a move that fails in this phase only."""
        faults = FaultPlan(
            seed=self.settings.simulator.seed, moves=MoveFaults.of_each(self.settings.simulator.move_fail)
        )
        phases: tuple[MovePhase, ...] = (*SENDING, "rebuild")
        while True:
            move = self.clock.uuid()
            fates = {(one, n): faults.phase_fate(move, one, n).kind for one in phases for n in (1, 2, 3)}
            if all(
                kind == ("failed" if one == phase and n < 3 else "done") for (one, n), kind in fates.items()
            ):
                return move

    async def order(self, errand: Errand, move: str, build: str, after: float) -> None:
        away = () if errand.kind in ("shelve", "rebuild") else tuple(self.hosts[SOURCE])
        await asyncio.sleep(after)
        await self.bus.publish(
            MoveRequested(
                move=move, build=build, kind=errand.kind, cell=CELL, ignore_hosts=away, **errand.more
            )
        )

    async def stands(self, move: str) -> MoveStands | None:
        found = await self.bus.asker(FIND_MOVES)(FindMoves(cell=CELL, moves=(move,)))
        return next(iter(found.moves), None)

    async def confirm(self, move: str, build: str) -> None:
        async def verifies() -> bool:
            stands = await self.stands(move)
            return stands is not None and stands.phase == "verify"

        await until(verifies, "it waits to be confirmed", 120.0, picture=lambda: self.stands(move))
        await self.bus.publish(MoveSteered(move=move, build=build, cell=CELL, to="confirm"))

    async def clean(self) -> None:
        async def settled() -> bool:
            await asyncio.sleep(0.2)
            found = await audit(self.settings, settled=True)
            return found.clean and set(found.types) <= {"INSTANCE"}

        await until(settled, "clean", picture=lambda: audit(self.settings, settled=True))

    async def kill(self, *roles: str) -> None:
        process_of = self.berth.process_of
        await until(lambda: all(map(process_of, roles)), f"{roles} run")
        ids = {role: process for role in roles if (process := process_of(role))}
        for process in {*ids.values()}:
            os.kill(process, signal.SIGKILL)
        for role, process in ids.items():
            while alive(process):
                await asyncio.sleep(0.001)
            if agent := AGENT_OF.get(role):  # noted before it begins again, for which it takes longer
                self.notes.stands_still(agent)


@asynccontextmanager
async def moving_site(
    settings: Settings,
    directory: Path,
    patch: pytest.MonkeyPatch,
    supervising_by: type[WatchingSupervisor] = WatchingSupervisor,
) -> AsyncIterator[MovingSite]:
    notes = directory / "notes"
    notes.mkdir()
    patch.setenv(NOTES, str(notes))
    async with running(settings, supervising_by) as berth:
        site = MovingSite(berth, AgentNotes(notes))
        async with asyncio.TaskGroup() as group:
            listening = await site.listen(group)
            try:
                yield site
            finally:
                for task in listening:
                    task.cancel()
