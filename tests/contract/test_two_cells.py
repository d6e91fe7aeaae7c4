"""A move from one cell to another, as two halves: each in its cell, and the order above deciding."""

import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import text

from bus.clock import Clock
from bus.host_health import FORCED_DOWN
from bus.messages import BuildDeleted, BuildDeleteRequested, BuildPlaced
from bus.moves import (
    HandoverProgress,
    MoveEnded,
    MoveOrdered,
    MovePlaced,
    MoveRefused,
    MoveRequested,
    MoveSteered,
    Steering,
)
from bus.names import MakeName, NameEditRequested
from bus.queries import FindBuilds
from bus.requests import Flavor
from bus.resources import EditRequested, SetTraits
from tests.support.ids import uid
from tests.support.placement_builders import a_placement
from tests.support.two_cells import CellsApart, SteppedTime, Unkind, root, two_cells

MOVE = uid(1, "e")
LARGE = Flavor(name="large", vcpus=4)


@pytest.fixture
async def world(request: pytest.FixtureRequest) -> AsyncIterator[CellsApart]:
    seed = getattr(request, "param", 1)
    time = SteppedTime()
    clock = Clock(now=time, chance=random.Random(seed), monotonic=time)
    async with (
        a_placement("sqlite+aiosqlite://", clock, inline=True) as placement,
        two_cells(placement, seed, clock, time) as world,
    ):
        yield world


def a_move(build: str, kind: str = "migrate", number: int = 1, **fields: Any) -> MoveRequested:
    fields = {"to_cell": "c2", **fields}
    return MoveRequested(move=uid(number, "e"), build=build, kind=kind, **fields)  # type: ignore[arg-type]


def steering(build: str, cell: str, to: Steering) -> MoveSteered:
    return MoveSteered(move=MOVE, build=build, cell=cell, to=to)


async def settled(world: CellsApart, build: str) -> tuple[str, str] | None:
    assert [move.phase for move in await world.moves_known() if not move.ended] == []
    assert len(world.ends()) == len({move for move, _ in world.ends()})
    holds, running = await world.holds(build), world.guests.running(build)
    listed = [one for one in await world.listed(build) if one[1] != "deleted"]
    if not listed:
        assert (holds, world.guests.roots(build)) == ({}, set())
        return None
    [(cell, status, host)] = listed
    if status == "active":
        there = root(int(host[-1]))
        expected = [[there], []] if _may_be_stopped(world) else [[there]]
        assert holds == {"itself": {there}} and running in expected
        assert world.guests.roots(build) == {there}
    else:
        assert (status, holds, world.guests.roots(build)) == ("shelved", {}, set())
    return cell, status


def _may_be_stopped(world: CellsApart) -> bool:
    """Return whether an agent did not report the state of the guest, or its host is dead."""
    ends = [message for message in world.said if isinstance(message, MoveEnded)]
    return any(
        (end.kind == "evacuate" and end.end != "done")
        or "did not go on at" in end.reason
        or "did not say that it runs" in end.reason
        for end in ends
    )


async def said(world: CellsApart, build: str) -> MoveEnded:
    ends = [message for message in world.said if isinstance(message, MoveEnded) and message.move == MOVE]
    assert all(end == ends[0] for end in ends)
    return ends[0]


async def is_dead(world: CellsApart, build: str) -> None:
    made = NameEditRequested(kind="trait", edit=MakeName(name=FORCED_DOWN))
    await world.placement.classes_and_traits.edit(made)
    mark = SetTraits(provider=root(1), traits=(FORCED_DOWN,))
    await world.placement.providers.edit_many([EditRequested(edit=mark)])
    world.guests.there[root(1), build][1] = "stopped"


# How it goes


async def test_a_moved_instance_belongs_to_the_new_cell_only(world: CellsApart) -> None:
    build = await world.boot()
    await world.comes_to(a_move(build))
    assert await settled(world, build) == ("c2", "active")
    end = await said(world, build)
    assert (end.cell, end.end, end.host in ("host-3", "host-4")) == ("c2", "done", True)
    assert [phase.phase for phase in end.phases] == ["prepare", "start"]


async def test_a_resize_is_confirmed_or_reverted_where_it_is(world: CellsApart) -> None:
    build = await world.boot()
    await world.comes_to(a_move(build, "resize", flavor=LARGE, verify=True))
    [(cell, status, _)] = await world.listed(build)
    assert (cell, status) == ("c2", "verifying")
    assert set(await world.holds(build)) == {"itself", "keeper 1"}
    await world.comes_to(steering(build, "c2", "revert"))
    assert await settled(world, build) == ("c1", "active")
    assert (await said(world, build)).end == "reverted"
    [stands] = (await world.cells["c1"].builds.find(FindBuilds(cell="c1", builds=(build,)))).builds
    assert (stands.spec and stands.spec.flavor.vcpus, stands.host) == (2, "host-1")

    await world.comes_to(a_move(build, "resize", 2, flavor=LARGE, verify=True))
    await world.comes_to(replace(steering(build, "c2", "confirm"), move=uid(2, "e")))
    assert await settled(world, build) == ("c2", "active")
    [stands] = (await world.cells["c2"].builds.find(FindBuilds(cell="c2", builds=(build,)))).builds
    assert stands.spec and stands.spec.flavor.vcpus == 4


async def test_a_shelved_instance_is_unshelved_in_another_cell(world: CellsApart) -> None:
    build = await world.boot()
    await world.comes_to(a_move(build, "shelve", 7, to_cell=""))
    assert await settled(world, build) == ("c1", "shelved")
    await world.comes_to(a_move(build, "unshelve"))
    assert await settled(world, build) == ("c2", "active")


async def test_a_dead_host_is_evacuated_into_another_cell(world: CellsApart) -> None:
    build = await world.boot()
    await is_dead(world, build)
    await world.comes_to(a_move(build, "evacuate"))
    assert await settled(world, build) == ("c2", "active")


@pytest.mark.parametrize("forgotten", [False, True], ids=["", "the old cell has forgotten it"])
async def test_attempt_numbers_only_grow_in_moves_between_cells(world: CellsApart, forgotten: bool) -> None:
    """Agents have not forgotten them: what is older than what they know is void."""
    build = await world.boot()
    ways = [("c2", "c1", "host-3"), ("c1", "c2", "host-1"), ("c2", "c1", "host-3")]
    for number, (cell, other, host) in enumerate(ways, 1):
        await world.comes_to(a_move(build, number=number, to_cell=cell, wanted_host=host))
        assert await settled(world, build) == (cell, "active")
        assert (await world.cells[other].builds.find(FindBuilds(cell=other, builds=(build,)))).builds == ()
        if forgotten:
            async with world.databases[other].write() as tx:
                await tx.execute(text("DELETE FROM builds"), {})
    [attempt] = world.guests.there[next(iter(world.guests.roots(build))), build]
    assert attempt == 4
    await world.comes_to(BuildDeleteRequested(build=build, cell="c2"))
    assert await settled(world, build) is None


# How it fails


@pytest.mark.parametrize("phase", ["send", "prepare", "start"])
async def test_a_failure_in_either_cell_reverts_the_move(world: CellsApart, phase: str) -> None:
    build = await world.boot()
    world.failing = phase
    await world.comes_to(a_move(build))
    assert await settled(world, build) == ("c1", "active")
    end = await said(world, build)
    assert (end.cell, end.end, end.host, "no luck" in end.reason) == ("c1", "error", "host-1", True)


async def test_an_unshelving_that_fails_there_is_shelved_again_here(world: CellsApart) -> None:
    build = await world.boot()
    await world.comes_to(a_move(build, "shelve", 7, to_cell=""))
    world.failing = "build"
    await world.comes_to(a_move(build, "unshelve"))
    assert await settled(world, build) == ("c1", "shelved")
    world.failing = ""
    await world.comes_to(a_move(build, "unshelve", 2, to_cell=""))
    assert await settled(world, build) == ("c1", "active")


async def test_a_move_to_a_cell_without_a_conductor_is_reverted(world: CellsApart) -> None:
    build = await world.boot()
    await world.until(a_move(build), MovePlaced)
    [placed] = [message for message in world.on_its_way if isinstance(message, MovePlaced)]
    world.on_its_way.clear()
    world.scheduler.ending._undeliverable_for = 0.0
    await world.comes_to(*await world.handovers.unheard(placed))
    assert await settled(world, build) == ("c1", "active")
    assert "no conductor" in (await said(world, build)).reason


@pytest.mark.parametrize("cell", ["c1", "c2"])
async def test_a_move_between_cells_can_be_aborted_in_both_cells(world: CellsApart, cell: str) -> None:
    build = await world.boot()
    await world.until(a_move(build), MoveOrdered, cell)
    world.on_its_way.append(steering(build, cell, "abort"))
    await world.step(-1)
    await world.comes_to()
    assert await settled(world, build) == ("c1", "active")
    assert (await said(world, build)).end == "aborted"


async def test_no_host_there_and_it_stays_where_it_is(world: CellsApart) -> None:
    build = await world.boot()
    await world.comes_to(a_move(build, wanted_host="host-2"))
    assert await settled(world, build) == ("c1", "active")
    assert [type(message) for message in world.said if isinstance(message, MoveRefused | MoveEnded)] == [
        MoveRefused
    ]


@pytest.mark.parametrize("kind", ["live", "rebuild", "shelve"])
async def test_rebuilds_and_live_migrations_stay_in_their_cell(world: CellsApart, kind: str) -> None:
    build = await world.boot()
    await world.comes_to(a_move(build, kind))
    [refusal] = [message for message in world.said if isinstance(message, MoveRefused)]
    assert refusal.code == "unreadable"


# Deleted in the middle of it


@pytest.mark.parametrize("kind", ["migrate", "unshelve"])
@pytest.mark.parametrize("steps", [2, 5, 8])
async def test_a_delete_received_by_either_cell_ends_the_instance(
    world: CellsApart, kind: str, steps: int
) -> None:
    build = await world.boot()
    if kind == "unshelve":
        await world.comes_to(a_move(build, "shelve", 7, to_cell=""))
    world.on_its_way.append(a_move(build, kind))
    await world.goes_on(1 + steps)
    cell = "c1" if steps % 2 else next(iter(await world.listed(build)), ("c1", "", ""))[0]
    await world.comes_to(BuildDeleteRequested(build=build, cell=cell, reply_to="me"))
    assert await settled(world, build) is None
    assert [
        message for message in world.said if isinstance(message, BuildDeleted) and message.reply_to == "me"
    ]


async def test_an_instance_deleted_before_its_arrival_never_runs(world: CellsApart) -> None:
    build = await world.boot()
    await world.until(a_move(build), MovePlaced)
    [placed] = [message for message in world.on_its_way if isinstance(message, MovePlaced)]
    world.on_its_way.remove(placed)
    await world.comes_to(BuildDeleteRequested(build=build, cell="c2", reply_to="me"))
    await world.comes_to(placed)
    assert await settled(world, build) is None
    assert (await said(world, build)).end == "deleted"


async def test_a_boot_that_is_read_again_builds_nothing_in_the_old_cell(world: CellsApart) -> None:
    build = await world.boot()
    [stands] = (await world.cells["c1"].builds.find(FindBuilds(cell="c1", builds=(build,)))).builds
    await world.comes_to(a_move(build))
    await world.comes_to(stands.placed)
    assert isinstance(stands.placed, BuildPlaced)
    assert await settled(world, build) == ("c2", "active")


async def test_a_claim_without_a_stored_handover_is_found_by_its_allocations(world: CellsApart) -> None:
    build = await world.boot()
    await world.hears_hosts()
    request = a_move(build)
    first = (await world.moves.place_many([request]))[0]
    async with world.databases["scheduler"].write() as tx:
        await tx.execute(text("DELETE FROM handovers"), {})
    again = (await world.moves.place_many([request]))[0]
    assert isinstance(first, tuple | list) and isinstance(again, tuple | list)
    assert isinstance(again[0], HandoverProgress) and again[0].host == first[0].host
    await world.comes_to(*again)
    assert await settled(world, build) == ("c2", "active")


STEERINGS: tuple[Steering, ...] = ("abort", "revert", "confirm", "force")


async def comes_through(world: CellsApart) -> None:
    """One random move, within a cell or to the other, with lost and repeated messages and failing phases."""
    chance = world.chance
    kind = chance.choice(["migrate", "resize", "resize", "unshelve", "live", "evacuate", "rebuild", "shelve"])
    build = await world.boot()
    if kind == "unshelve":
        await world.comes_to(a_move(build, "shelve", 7, to_cell=""))
    if kind == "evacuate":
        await is_dead(world, build)
    fields: dict[str, Any] = {"verify": kind in ("migrate", "resize") and chance.random() < 0.7}
    if kind == "resize":
        fields["flavor"] = LARGE
    if kind in ("live", "rebuild", "shelve") or chance.random() < 0.6:
        fields["to_cell"] = ""
    fails, hangs = chance.choice([0.0, 0.2, 0.5]), chance.choice([0.0, 0.1])
    world.unkind = Unkind(twice=0.2, dies=0.15, fails=fails, hangs=hangs)
    world.on_its_way.append(a_move(build, kind, **fields))
    for _ in range(chance.randrange(3)):
        await world.goes_on(chance.randrange(1, 25))
        if chance.random() < 0.3:
            world.on_its_way.append(BuildDeleteRequested(build=build, cell="c1", reply_to="me"))
        else:
            world.on_its_way.append(steering(build, chance.choice(["c1", "c2"]), chance.choice(STEERINGS)))
    await world.comes_to()
    world.unkind = Unkind()
    to = chance.choice(STEERINGS[1:3])
    await world.comes_to(*(steering(build, cell, to) for cell in ("c1", "c2")))
    world.now += 500.0
    await world.comes_to()
    await settled(world, build)


SEEDS = [*range(40), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(40, 400))]


@pytest.mark.parametrize("world", SEEDS, indirect=True)
async def test_a_random_move_ends_once_with_one_running_guest(world: CellsApart) -> None:
    await comes_through(world)
