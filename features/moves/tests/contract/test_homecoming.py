"""A returning agent first asks placement for the holders of its guests; guests that moved elsewhere never run
again.
"""

import asyncio

import pytest

from bus.claims import holder_consumer
from bus.clock import Clock
from bus.resources import AllocationsFound, Consumer, FindAllocations, FindProviders, Provider, ProvidersFound
from compute_sim.extension import AgentDisk
from compute_sim.testing import GuestRecovery
from features.moves.tests.support.moving_agent import BUILD, DESTINATION, SOURCE, MovingAgent, a_build
from tests.support.ids import uid
from tests.support.virtual_time import in_virtual_time


class SmallPlacement:
    """Answers queries for the allocations of builds, and of the holder consumers of earlier attempts."""

    def __init__(self, build_on: str = "", kept: str = "", attempt: int = 1) -> None:
        self.held: dict[str, tuple[str, str]] = {}  # consumer → provider, type
        self.away: Exception | None = None
        self.asked = 0
        if build_on:
            self.build_on(build_on)
        if kept:
            self.kept_on_source(kept, attempt)

    def build_on(self, root: str) -> None:
        self.held[BUILD] = root, "INSTANCE"

    def kept_on_source(self, type_: str, attempt: int = 1) -> None:
        self.held[holder_consumer(BUILD, attempt)] = SOURCE, type_

    async def allocations(self, question: FindAllocations) -> AllocationsFound:
        self.asked += 1
        if self.away is not None:
            raise self.away
        return AllocationsFound(
            consumers=tuple(
                Consumer(
                    id=consumer, generation=1, project="p", user="u", type=self.held[consumer][1],
                    allocations={self.held[consumer][0]: {"VCPU": 1}},
                )
                for consumer in question.consumers
                if consumer in self.held
            ),
            generations={},
        )  # fmt: skip

    async def providers(self, question: FindProviders) -> ProvidersFound:
        return ProvidersFound(
            providers=tuple(
                Provider(id=id_, name=id_, parent=None, root=SOURCE, generation=1)
                for id_ in question.ids
                if id_ == uid(9, "d")
            )
        )


OLD_PROVIDER = uid(9, "d")  # a provider that the source had when the guest arrived, and that was removed


Guests = dict[int, tuple[str, str]]


def recovery(agent: MovingAgent, placement: SmallPlacement, **options: bool) -> GuestRecovery:
    clock = Clock(monotonic=asyncio.get_running_loop().time)
    return GuestRecovery(agent.does, "c1", clock, placement.providers, **options)


async def back_from_the_dead(
    placement: SmallPlacement, disk: AgentDisk | None = None, **options: bool
) -> tuple[MovingAgent, GuestRecovery]:
    if disk is None:
        disk = (await MovingAgent().build()).disk
    disk.lose_power()
    agent = MovingAgent(disk, ask=placement.allocations)
    return agent, recovery(agent, placement, **options)


RUNS, WAITS = {1: ("source", "running")}, {1: ("source", "(running)")}


@pytest.mark.parametrize(
    ("build_on", "kept", "guests", "kept_guests"),
    [
        (SOURCE, "", RUNS, RUNS),
        (OLD_PROVIDER, "", RUNS, RUNS),
        (DESTINATION, "MIGRATION", WAITS, WAITS),
        (SOURCE, "MIGRATION", WAITS, WAITS),
        (DESTINATION, "CLEANUP", {}, {}),
        (SOURCE, "CLEANUP", {}, {}),  # the build is here again, as the guest of a later attempt
        (DESTINATION, "", {}, WAITS),  # placement may be a restored older database
        ("", "", {}, WAITS),
        (uid(8, "d"), "", {}, WAITS),
    ],
)
@pytest.mark.parametrize("keeps_unknown", [False, True], ids=["", "restored, unknown guests are kept"])
@in_virtual_time
async def test_a_returning_agent_destroys_guests_that_placement_has_elsewhere(
    build_on: str, kept: str, guests: Guests, kept_guests: Guests, keeps_unknown: bool
) -> None:
    agent, home = await back_from_the_dead(SmallPlacement(build_on, kept), keeps_unknown=keeps_unknown)
    assert agent.disk.running() == [] and not agent.does.ready
    reports = await home.check()
    expected = kept_guests if keeps_unknown else guests
    assert (agent.guests(), agent.does.ready) == (expected, True)
    assert [(report.outcome, report.attempt) for report in reports] == [("destroyed", 1)] * (not expected)
    if not expected:  # a late order has no effect
        again = await agent.does.build(a_build())
        assert again is not None and again.outcome == "destroyed"


@pytest.mark.parametrize(
    ("holder", "attempts", "left"),
    [
        (("MIGRATION", 1), [2], [2]),  # rebuilt in the move
        (("MIGRATION", 3), [1], [1]),
        (("CLEANUP", 3), [1], []),
        (("MIGRATION", 3), [1, 2], [2]),
        (("MIGRATION", 3), [1, 3], [3]),
    ],
)
@in_virtual_time
async def test_a_guest_with_another_attempt_than_its_holder_waits_during_a_move(
    holder: tuple[str, int], attempts: list[int], left: list[int]
) -> None:
    disk = AgentDisk()
    for attempt in attempts:
        disk.begin(a_build(attempt))
    agent, home = await back_from_the_dead(SmallPlacement(DESTINATION, *holder), disk)
    reports = await home.check()
    assert sorted(agent.guests()) == left and agent.disk.running() == []
    assert [report.attempt for report in reports] == [attempt for attempt in attempts if attempt not in left]


STOOD_STILL = 30.0


async def at_work(placement: SmallPlacement) -> tuple[MovingAgent, GuestRecovery]:
    placement.build_on(SOURCE)
    agent = MovingAgent((await MovingAgent().build()).disk, ask=placement.allocations)
    agent.does.absent_after = 5.0
    home = recovery(agent, placement)
    await home.check()
    assert agent.does.ready
    return agent, home


@pytest.mark.parametrize(
    ("build_on", "kept", "guests", "reply"),
    [
        (SOURCE, "", {1: ("source", "running")}, []),
        (DESTINATION, "MIGRATION", {1: ("source", "(running)")}, []),
        (DESTINATION, "", {}, ["destroyed"]),
    ],
    ids=["its own", "being evacuated", "evacuated"],
)
@in_virtual_time
async def test_a_paused_agent_asks_placement_again_before_it_continues(
    build_on: str, kept: str, guests: dict[int, tuple[str, str]], reply: list[str]
) -> None:
    placement = SmallPlacement()
    agent, home = await at_work(placement)
    for _ in range(10):
        await asyncio.sleep(4.0)
        assert agent.does.ready and agent.guests() == {1: ("source", "running")}
    placement.build_on(build_on)
    if kept:
        placement.kept_on_source(kept)
    await asyncio.sleep(STOOD_STILL)
    assert not agent.does.ready and agent.disk.running() == []
    assert [report.outcome for report in await home.check()] == reply
    assert agent.guests() == guests and agent.does.ready


@in_virtual_time
async def test_an_answer_from_before_the_pause_is_ignored() -> None:
    placement = SmallPlacement()
    agent, home = await at_work(placement)
    await asyncio.sleep(STOOD_STILL)
    asked = placement.allocations

    async def slowly(question: object) -> object:
        answer = await asked(question)  # type: ignore[arg-type]
        placement.build_on(DESTINATION)
        agent.does.allocations = asked
        await asyncio.sleep(STOOD_STILL)
        return answer

    agent.does.allocations = slowly  # type: ignore[assignment]
    assert await home.check() == []
    assert not agent.does.ready and agent.disk.running() == []
    await asyncio.sleep(1.0)
    assert [report.outcome for report in await home.check()] == ["destroyed"]
