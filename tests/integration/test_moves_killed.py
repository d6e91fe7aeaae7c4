"""kill -9 of each process in every phase of every kind of move.

Source and destination agents are separate processes. For each kind, phase and victim, the move was in that
phase when the victim was killed; then it ended once with the expected result, its guest never ran twice, and
the audit finds nothing left over.
"""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import time
from typing import Any, Literal

import pytest

from berth import simulated_agents
from bus.clock import monotonic
from bus.moves import MoveEnd, MoveEnded, MoveKind, MovePhase, PhaseOver, Steering
from bus.requests import Flavor, Image
from compute_sim.guest_file import MovePhaseReported
from tests.support.moving_site import DESTINATION, PEOPLE, SOURCE, MovingSite, moving_settings, moving_site
from tests.support.waiting import until

pytestmark = [pytest.mark.services, pytest.mark.slow]

LARGE = Flavor(name="large", vcpus=2, memory_mb=64, disk_gb=1)
PLACING = "placing"  # asked for, and not with its cell yet
PATIENCE = 90.0
TRIES = 4


@dataclass(frozen=True)
class Errand:
    """A kind of move, what is done with it, and what is to come of it."""

    kind: MoveKind
    phases: tuple[str, ...]  # one after the other; most take the same time, `swap`, `undo`, `back` hardly any
    end: MoveEnd = "done"
    at: str = DESTINATION  # the agent
    fails: MovePhase | Literal[""] = ""
    then: Steering | Literal[""] = ""  # when it waits to be confirmed
    more: dict[str, Any] = field(default_factory=dict)

    def before(self, phase: str) -> int:
        before = self.phases[: self.phases.index(phase)]
        return sum(one not in BRIEF for one in before)


BRIEF = ("verify", "swap", "undo", "back", "destroy", "release")  # agents take no time for them
SENDING = ("prepare", "send", "start")
WAY_BACK = ("back", "resume")
RESIZE = {"flavor": LARGE, "verify": True}
WAYS = {
    "migrate": Errand("migrate", SENDING),
    "live": Errand("live", SENDING),
    "resize, confirmed": Errand("resize", (*SENDING, "verify"), then="confirm", more=RESIZE),
    "resize, reverted": Errand(
        "resize", (*SENDING, "verify", "undo", *WAY_BACK), "reverted", SOURCE, then="revert", more=RESIZE
    ),
    "migrate, not sent": Errand("migrate", ("prepare", "send", *WAY_BACK), "error", SOURCE, fails="send"),
    "migrate, to an alternate": Errand("migrate", ("prepare", "swap", *SENDING), fails="prepare"),
    "evacuate": Errand("evacuate", ("build",)),
    "shelve": Errand("shelve", ("send", "destroy", "release"), at=""),
    "unshelve": Errand("unshelve", ("build",)),
    "rebuild": Errand("rebuild", ("rebuild",), at=SOURCE, more={"image": Image(name="alpine")}),
}
# What is waited for by the clock; what takes no time is held, below
TIMED = [(name, phase) for name in ("migrate", "live") for phase in (PLACING, *SENDING)] + [
    *[("resize, confirmed", phase) for phase in (PLACING, *SENDING, "verify")],
    ("resize, reverted", "resume"), ("migrate, not sent", "resume"),
    ("evacuate", PLACING), ("evacuate", "build"), ("unshelve", PLACING), ("unshelve", "build"),
    ("shelve", PLACING), ("shelve", "send"), ("rebuild", PLACING), ("rebuild", "rebuild"),
]  # fmt: skip
HELD = {
    "agents": [("resize, reverted", "undo"), ("shelve", "destroy")],
    "placement": [("migrate, not sent", "back"), ("migrate, to an alternate", "swap"), ("shelve", "release")],
}
SHOWN = {"undo": "revert"}  # what an undo is for

Row = tuple[str, str]  # way, phase


@dataclass
class Course:
    """One move of one instance."""

    way: str
    phase: str
    build: str
    move: str
    asked: float = 0.0

    @property
    def row(self) -> Row:
        return self.way, self.phase

    @property
    def goes(self) -> Errand:
        return WAYS[self.way]

    async def begin(self, site: MovingSite) -> None:
        self.asked = time()
        await site.order(self.move, self.build, self.goes.kind, **self.goes.more)

    def was_in_it(self, end: MoveEnded, at: float) -> bool:
        """Was it in that phase, by what its cell wrote down?"""
        if self.phase == PLACING:
            return self.asked < at < end.phases[0].began
        return any(phase.phase == self.phase and phase.began < at < phase.ended for phase in end.phases)


class Killing:
    """A berth, and one kill after the other."""

    def __init__(self, site: MovingSite, seconds: float) -> None:
        self.site, self.seconds = site, seconds
        self.lag = 0.0  # how much longer each phase takes on this machine, as it is now

    async def at(self, victims: Iterable[str], rows: Iterable[Row]) -> dict[Row, bool]:
        courses = await self.instances(rows)
        began = monotonic() + 0.2
        last = max((self.offset(course) for course in courses), default=0.0)
        async with asyncio.TaskGroup() as group:
            for course in courses:
                if course.phase != PLACING:
                    group.create_task(self.timed(course, began + last - self.offset(course)))
            await asyncio.sleep(began + last - monotonic())
            for course in courses:
                if course.phase == PLACING:
                    await course.begin(self.site)
            at = time()
            await self.site.kill(*[PEOPLE[victim] for victim in victims])
        return await self.judged(courses, at)

    def offset(self, course: Course) -> float:
        if course.phase == PLACING:
            return 0.0
        before = course.goes.before(course.phase)
        return (before + 0.5) * self.seconds + (before + 1) * self.lag

    async def timed(self, course: Course, at: float) -> None:
        await asyncio.sleep(max(0.0, at - monotonic()))
        await course.begin(self.site)
        if course.goes.then == "revert":
            await self.site.reached({course.move: "verify"})
            await self.site.steer(course.move, course.build, "revert")

    async def instances(self, rows: Iterable[Row]) -> list[Course]:
        """One for each, where it is to be before it moves."""
        first, _, third = self.site.hosts[SOURCE]
        rows = list(rows)
        dead = [row for row in rows if row[0] == "evacuate"]
        builds = [
            *await self.site.boot(len(rows) - len(dead), first),
            *await self.site.boot(len(dead), third),
        ]
        rows = [row for row in rows if row not in dead] + dead
        courses = [
            Course(way, phase, build, self.site.move_that_fails(WAYS[way].fails))
            for (way, phase), build in zip(rows, builds, strict=True)
        ]
        if dead:
            await self.site.force_down(third)
        shelved = [
            (course.build, self.site.move_that_fails()) for course in courses if course.way == "unshelve"
        ]
        for build, move in shelved:
            await self.site.order(move, build, "shelve")
        await self.site.over([move for _, move in shelved])
        return courses

    # What is held where it would take no time

    async def held_by_agents(self, victim: str) -> dict[Row, bool]:
        site = self.site
        resized, shelved = await self.instances(HELD["agents"])
        agents = PEOPLE["source agent"], PEOPLE["destination agent"]
        await resized.begin(site)
        await site.reached({resized.move: "verify"})
        await shelved.begin(site)
        await site.reached({shelved.move: "send"})
        await site.stop(PEOPLE["conductor"])
        await until(lambda: self.has_said(SOURCE, shelved.move, "send"), "sent")
        await asyncio.sleep(0.3)
        await site.stop(*agents)
        await site.steer(resized.move, resized.build, "revert")
        await site.go_on(PEOPLE["conductor"])
        return await self.killed_while([resized, shelved], victim, agents)

    async def held_by_placement(self, victim: str) -> dict[Row, bool]:
        site = self.site
        courses = await self.instances(HELD["placement"])
        for course in courses:
            await course.begin(site)
        await site.known([course.move for course in courses])
        await site.stop(PEOPLE["placement"])
        return await self.killed_while(courses, victim, [PEOPLE["placement"]])

    async def killed_while(
        self, courses: list[Course], victim: str, stopped: Iterable[str]
    ) -> dict[Row, bool]:
        site = self.site
        hit = False
        with suppress(AssertionError):
            await site.reached(
                {course.move: SHOWN.get(course.phase, course.phase) for course in courses}, PATIENCE
            )
            hit = True
        if hit:
            await site.kill(PEOPLE[victim])
        await site.go_on(*[role for role in stopped if not hit or role != PEOPLE[victim]])
        await self.judged(courses, time())
        return {course.row: hit for course in courses}

    def has_said(self, agent: str, move: str, phase: str) -> bool:
        """Is it in this agent's file that this phase is over?"""
        lines = simulated_agents.guest_file(self.site.settings, agent).read_text().splitlines()
        words = MovePhaseReported.__name__, move, phase
        return any(all(f'"{word}"' in line for word in words) for line in lines)

    # What came of it

    async def judged(self, courses: list[Course], at: float) -> dict[Row, bool]:
        site = self.site
        waiting = {
            course.move: course
            for course in courses
            if course.goes.then == "confirm" and course.goes.kind == "resize"
        }
        if waiting:
            await site.reached(dict.fromkeys(waiting, "verify"))
            for course in waiting.values():
                await site.steer(course.move, course.build, "confirm")
        await site.over([course.move for course in courses])
        await site.clean()
        running = site.notes.now()
        for course in courses:
            said = site.ends[course.move]
            assert all(other == said[0] for other in said), said
            end, goes = said[0], course.goes
            agent = site.agent_of[end.root] if end.root else ""
            assert (end.end, agent) == (goes.end, goes.at), (course, end)
            phases = [phase.phase for phase in end.phases]
            assert phases == [phase for phase in goes.phases if phase not in ("swap", "back", "release")], end
            roots = [root for _, root in running.get(course.build, [])]
            assert roots == ([end.root] if end.root else []), (course, end, running.get(course.build))
        twice = [
            (course, said, site.ends[course.move][0].phases, at)
            for course in courses
            for said in site.notes.at_once(course.build)
            if course.goes.kind != "evacuate"
        ]
        assert not twice
        await site.force_down(site.hosts[SOURCE][2], yes=False)
        await site.delete([course.build for course in courses])
        await until(lambda: not {course.build for course in courses} & site.notes.now().keys(), "deleted")
        site.forget_failures()
        took = [phase.ended - phase.began for phase in self.undisturbed(courses, at)]
        self.lag = max(0.0, median(took) - self.seconds) if took else self.lag
        return {course.row: course.was_in_it(site.ends[course.move][0], at) for course in courses}

    def undisturbed(self, courses: list[Course], at: float) -> Iterator[PhaseOver]:
        for course in courses:
            for phase in self.site.ends[course.move][0].phases:
                if phase.phase not in BRIEF and phase.ended < at:
                    yield phase


async def test_moves_of_every_type_survive_kills(
    amqp_url: str, database_url: str, bus_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = moving_settings(amqp_url, database_url, bus_name, seconds := 0.3)
    async with moving_site(settings, tmp_path, monkeypatch) as site:
        rows = [
            ("migrate", "prepare"), ("migrate", "start"), ("live", "send"), ("resize, confirmed", "start"),
            ("shelve", "send"), ("rebuild", "rebuild"), ("evacuate", "build"), ("migrate, not sent", "send"),
        ]  # fmt: skip
        await Killing(site, seconds).at(["source agent", "destination agent", "conductor"], rows)


@pytest.mark.soak
async def test_kill_9_of_every_process_in_every_phase_of_every_move(
    amqp_url: str, database_url: str, bus_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = moving_settings(amqp_url, database_url, bus_name, seconds := 2.0)
    rows = [*TIMED, *HELD["agents"], *HELD["placement"]]
    hits: dict[tuple[Row, str], int] = dict.fromkeys([(row, who) for row in rows for who in PEOPLE], 0)
    async with moving_site(settings, tmp_path, monkeypatch) as site:
        killing = Killing(site, seconds)
        for who in PEOPLE:
            for rounds in (TIMED, HELD["agents"], HELD["placement"]):
                for _ in range(TRIES):
                    missing = [row for row in rounds if not hits[row, who]]
                    if not missing:
                        break
                    if rounds is TIMED:
                        found = await killing.at([who], missing)
                    elif rounds is HELD["agents"]:
                        found = await killing.held_by_agents(who)
                    else:
                        found = await killing.held_by_placement(who)
                    for row, hit in found.items():
                        hits[row, who] += hit
    assert [cell for cell, hit in hits.items() if not hit] == []
