"""A berth on real services for moves: two agents as processes, which log which guests run.

Instances are built on the first agent's hosts, and move to those of the second.
"""

import asyncio
import os
import signal
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import pytest

from berth import simulated_agents
from berth.operations.audit import audit
from berth.operations.host_states import forcing_down, host_named
from berth.settings import Settings
from bus import topics
from bus.clock import Clock
from bus.errors import Unavailable, Unroutable
from bus.messages import BuildDeleteRequested, BuildEnded, BuildRequested
from bus.moves import (
    FindMoves,
    MoveEnded,
    MoveKind,
    MovePhase,
    MoveRefused,
    MoveRequested,
    MoveStands,
    MoveSteered,
    Steering,
)
from bus.requests import Flavor, Image
from compute_sim import FaultPlan, MoveFaults
from tests.support.berth_processes import Running, alive, running
from tests.support.waiting import DEADLINE, receive_all, until
from tests.support.watched_agents import NOTES, AgentNotes, WatchingSupervisor

CELL = "c1"
SOURCE, DESTINATION = "c1-agent1", "c1-agent2"
PEOPLE = {
    "source agent": f"compute.{CELL}.{SOURCE}",
    "destination agent": f"compute.{CELL}.{DESTINATION}",
    "conductor": f"conductor.{CELL}",
    "scheduler": "scheduler",
    "placement": "placement",
}
AGENT_OF = {PEOPLE["source agent"]: SOURCE, PEOPLE["destination agent"]: DESTINATION}
FLAVOR = Flavor(name="small", vcpus=1, memory_mb=64, disk_gb=1)
FAILING = 0.1  # of each phase; tests choose ids of moves that fail where they are to


def moving_settings(amqp_url: str, database_url: str, bus_name: str, seconds: float) -> Settings:
    return Settings().having(
        amqp_url=amqp_url, database_url=database_url, exchange=bus_name, cells=(CELL,), hosts=6,
        agents_per_cell=2, build_timeout=60.0, move_fail=FAILING, build_time=f"constant:{seconds}",
        move_time=f"constant:{seconds}",
    )  # fmt: skip


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
        ends = await self.bus.listen(topics.MOVE_ENDED.at())
        refusals = await self.bus.listen(topics.MOVE_REFUSED.at())

        takers = (
            receive_all(builds, lambda end: self.builds.setdefault(end.build, end)),
            receive_all(ends, lambda end: self.ends[end.move].append(end)),
            receive_all(refusals, lambda refusal: self.refused.update({refusal.move: refusal})),
        )
        return [group.create_task(taker) for taker in takers]

    # What is asked of it

    async def boot(self, count: int, host: str) -> list[str]:
        """So many that are active there."""
        builds = [self.clock.uuid() for _ in range(count)]
        await self.bus.publish(
            *[
                BuildRequested(
                    request=build, instances=(build,), flavor=FLAVOR, image=Image(name="debian"),
                    forced_host=host,
                )
                for build in builds
            ]
        )  # fmt: skip
        await until(lambda: {*builds} <= self.builds.keys(), f"{count} built on {host}")
        assert {self.builds[one].status for one in builds} <= {"active"}
        return builds

    def move_that_fails(self, phase: MovePhase | Literal[""] = "") -> str:
        faults = FaultPlan(
            seed=self.settings.compute.seed, moves=MoveFaults.of_each(self.settings.compute.move_fail)
        )
        said: tuple[MovePhase, ...] = ("prepare", "send", "start", "rebuild")
        wanted = {
            (literal, n): "failed" if literal == phase and n < 3 else "done"
            for literal in said
            for n in (1, 2, 3)
        }
        while True:
            move = self.clock.uuid()
            if all(faults.phase_fate(move, one, n).kind == kind for (one, n), kind in wanted.items()):
                return move

    async def order(self, move: str, build: str, kind: MoveKind, **more: Any) -> None:
        seeks = kind not in ("shelve", "rebuild")
        away = tuple(self.hosts[SOURCE]) if seeks else ()
        await self.bus.publish(
            MoveRequested(move=move, build=build, kind=kind, cell=CELL, ignore_hosts=away, **more)
        )

    async def steer(self, move: str, build: str, to: Steering) -> None:
        await self.bus.publish(MoveSteered(move=move, build=build, cell=CELL, to=to))

    async def delete(self, builds: Iterable[str]) -> None:
        await self.bus.publish(*[BuildDeleteRequested(build=build, cell=CELL) for build in builds])

    async def force_down(self, host: str, yes: bool = True) -> None:
        await forcing_down(yes)(self.bus, await host_named(self.bus, host))

    # How it stands

    async def stands(self, moves: Collection[str]) -> dict[str, MoveStands]:
        if not moves:
            return {}
        ask = self.bus.asker(topics.FIND_MOVES, timeout=2.0)
        try:
            found = await ask(FindMoves(cell=CELL, moves=tuple(moves), limit=1000))
        except (Unavailable, Unroutable):
            return {}
        return {move.move: move for move in found.moves}

    async def reached(self, phases: dict[str, str], seconds: float = DEADLINE) -> None:
        async def all_there() -> bool:
            stands = await self.stands(phases)
            return all(move in stands and stands[move].phase == phase for move, phase in phases.items())

        await until(all_there, f"{set(phases.values())}", seconds, picture=lambda: self.stands(phases))

    async def known(self, moves: Collection[str]) -> None:
        async def all_known() -> bool:
            return {*moves} <= (await self.stands(moves)).keys()

        await until(all_known, "placed")

    async def over(self, moves: Collection[str]) -> None:
        await until(
            lambda: all(move in self.ends or move in self.refused for move in moves),
            "ended",
            120.0,
            picture=lambda: self.stands([move for move in moves if move not in self.ends]),
        )
        assert not self.refused

    async def clean(self) -> None:
        async def settled() -> bool:
            await asyncio.sleep(0.2)
            found = await audit(self.settings, settled=True)
            return found.clean and set(found.types) <= {"INSTANCE"}

        await until(settled, "clean", picture=lambda: audit(self.settings, settled=True))

    async def kill(self, *roles: str) -> None:
        processes = self.berth.supervisor.processes
        await until(lambda: {*roles} <= processes().keys(), f"{roles} run")
        ids = [processes()[role][0] for role in roles]
        for process in ids:
            os.kill(process, signal.SIGKILL)
        for role, process in zip(roles, ids, strict=True):
            while alive(process):
                await asyncio.sleep(0.001)
            if agent := AGENT_OF.get(role):  # noted before it begins again, for which it takes longer
                self.notes.stands_still(agent)

    async def stop(self, *roles: str) -> None:
        for role in roles:
            await self.berth.signal(role, signal.SIGSTOP)

    async def go_on(self, *roles: str) -> None:
        for role in roles:
            await self.berth.signal(role, signal.SIGCONT)

    def forget_failures(self) -> None:
        for child in self.berth.supervisor.children:
            child.failures = 0


@asynccontextmanager
async def moving_site(
    settings: Settings, directory: Path, patch: pytest.MonkeyPatch
) -> AsyncIterator[MovingSite]:
    notes = directory / "notes"
    notes.mkdir()
    patch.setenv(NOTES, str(notes))
    async with running(settings, WatchingSupervisor) as berth:
        site = MovingSite(berth, AgentNotes(notes))
        async with asyncio.TaskGroup() as group:
            listening = await site.listen(group)
            try:
                yield site
            finally:
                for task in listening:
                    task.cancel()
