"""Moves as they are asked for: where each goes, what is claimed for it, and what becomes known, once."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from berth.kit.testing import FEATURES
from bus.claims import STARTED, Choice
from bus.decisions import AlsoAsked, Decision
from bus.errors import Poison, Retry
from bus.host_health import FORCED_DOWN
from bus.requests import Flavor, Hints, Image
from features.moves.core.start import undo_claim_id
from features.moves.messages import MovePlaced, MoveRefused, MoveRequested
from features.moves.tests.support.move_builders import BUILD, MOVE, a_build_that_stands, a_move
from features.moves.tests.support.moving_clouds import BIG, KEEP, MovingCloud, a_cloud, root, shelved
from tests.support.claims_in_memory import Holding
from tests.support.ids import uid
from tests.support.scheduler_builders import a_candidate, a_heartbeat

# It has a place


async def test_a_move_claims_a_new_host_and_a_holder_keeps_the_old_one() -> None:
    cloud = a_cloud()
    placed = await cloud.placed(a_move(reply_to="me", alternates=1))
    assert placed.chosen is not None
    assert root(1) not in {placed.chosen.root, *(alternate.root for alternate in placed.alternates)}
    assert len(placed.alternates) == 1
    assert (placed.move, placed.build, placed.kind, placed.cell) == (MOVE, BUILD, "migrate", "cell1")
    assert (placed.attempt, placed.generation, placed.reply_to) == (1, 2, "me")
    assert cloud.placement.roots(BUILD) == {placed.chosen.root}
    assert cloud.placement.roots(KEEP) == {root(1)}
    assert cloud.placement.retired == {MOVE: STARTED}
    assert (placed.spec.project, placed.spec.name, placed.spec.metadata) == ("p", "web-1", {"a": "b"})
    assert placed.decision.record is not None and placed.decision.scores
    (order,) = cloud.placement.orders
    [claim] = order.claims
    assert (claim.project, claim.user) == ("p", "u")


@pytest.mark.parametrize(("zone", "to"), [("a", None), ("b", 2)])
async def test_an_evacuation_keeps_the_requested_zone_unless_its_host_has_left_it(
    zone: str, to: int | None
) -> None:
    hosts = a_candidate(1, traits=(FORCED_DOWN,), zone=zone), a_candidate(2, zone="b")
    cloud = a_cloud(*hosts, asked=AlsoAsked(zone="a"))
    if to is None:
        assert "zone" in (await cloud.refused(a_move(1, "evacuate"))).reason
    else:
        placed = await cloud.placed(a_move(1, "evacuate"))
        assert placed.chosen is not None and placed.chosen.root == root(to)


async def test_a_resize_may_stay_where_old_and_new_fit_together() -> None:
    big = {"VCPU": 5, "MEMORY_MB": 4096, "DISK_GB": 40}
    only = [a_candidate(1, free=big), a_candidate(2, free={"VCPU": 1, "MEMORY_MB": 1, "DISK_GB": 1})]
    cloud = a_cloud(*only)
    placed = await cloud.placed(a_move(1, "resize", flavor=BIG, same_host=True))
    assert placed.chosen is not None and placed.chosen.root == root(1)
    assert cloud.placement.roots(KEEP) == {root(1)}

    tight = a_cloud(a_candidate(1, free={**big, "VCPU": 4}), only[1])
    reply = await tight.refused(a_move(1, "resize", flavor=BIG, same_host=True))
    assert (reply.code, tight.placement.roots(BUILD)) == ("class", {root(1)})


async def test_a_move_keeps_the_constraints_of_the_boot() -> None:
    asked = AlsoAsked(zone="z2", hints=Hints(different_host=(uid(9, "b"),)))
    hosts = [a_candidate(1, zone="z2"), a_candidate(2), *(a_candidate(n, zone="z2") for n in (3, 4))]
    cloud = a_cloud(*hosts, asked=asked)
    cloud.placement.hold(uid(9, "b"), 3)
    placed = await cloud.placed(a_move())
    assert placed.chosen is not None and placed.chosen.root == root(4)
    assert placed.decision.record is not None and placed.decision.record.asked is not None
    assert placed.decision.record.asked.zone == "z2"


# Unshelve, rebuild and shelve


async def test_a_shelved_instance_holds_nothing_and_gets_a_new_host() -> None:
    cloud = a_cloud()
    shelved(cloud)
    placed = await cloud.placed(a_move(1, "unshelve"))
    assert (placed.attempt, placed.generation) == (0, 1)
    [claim] = cloud.placement.orders[0].claims
    assert (claim.generation, claim.keep, claim.begins) == (None, None, MOVE)
    assert {question.cell for question in cloud.cells.questions} == {"cell1"}


@pytest.mark.parametrize(
    ("properties", "why"),
    [
        ({}, ""),
        pytest.param(
            {"hw_architecture": "aarch64"},
            "host1, where it is, does not do for it",
            marks=pytest.mark.skipif("nova_filters" not in FEATURES, reason="there is no image_properties"),
        ),
    ],
)
async def test_a_rebuild_requires_a_host_that_accepts_the_image(properties: dict[str, str], why: str) -> None:
    """However full that is."""
    cloud = a_cloud(a_candidate(1, free={"VCPU": 1, "MEMORY_MB": 1024, "DISK_GB": 10}), a_candidate(2))
    cloud.scheduler.book.handle(a_heartbeat(1, architecture="x86_64"), cloud.time.now)
    (reply,) = await cloud.come_of(a_move(1, "rebuild", image=Image(name="i", properties=properties)))
    assert isinstance(reply, MoveRefused) == bool(why)
    assert not why or (isinstance(reply, MoveRefused) and why in reply.reason and reply.code == "image")


# It does not move


def on_metal(cloud: MovingCloud) -> None:
    stands = a_build_that_stands(1)
    assert stands.chosen is not None
    choice = Choice({root(1): {"CUSTOM_NODE": 1}})
    cloud.cells.know(replace(stands, chosen=replace(stands.chosen, choice=choice)))
    cloud.placement.metal.add(root(1))


REFUSED: list[tuple[str, MoveRequested, Callable[[MovingCloud], object], str, str]] = [
    ("unknown", a_move(build=uid(4, "b")), lambda cloud: None, "unknown", "does not know"),
    ("in another move", a_move(),
     lambda cloud: cloud.cells.know(a_build_that_stands(1, status="moving", move=uid(7, "e"))), "moving",
     f"it is in another move, {uid(7, 'e')}"),
    ("no guest yet", a_move(), lambda cloud: cloud.cells.know(a_build_that_stands(1, status="building")),
     "status", "it is building; this move needs an instance that is active: migrate"),
    ("not shelved", a_move(1, "unshelve"), lambda cloud: None, "status", "needs an instance that is shelved"),
    ("not fenced", a_move(1, "evacuate"), lambda cloud: None, "not_fenced", "`berth host force-down host1`"),
    ("bare metal", a_move(), lambda cloud: on_metal(cloud), "bare_metal", "moves nowhere"),
    ("it is there", a_move(wanted_host="host1"), lambda cloud: None, "same_host", "it is on host1 already"),
    ("moved meanwhile", a_move(source="host2"), lambda cloud: None, "not_on_source", "it is on host1"),
    ("no host to leave", a_move(1, "unshelve", source="host1"), lambda cloud: None, "unreadable", "source:"),
    ("no flavor", a_move(1, "resize"), lambda cloud: None, "unreadable", "flavor: a resize requires"),
    ("nobody fits", a_move(1, "resize", flavor=Flavor(name="huge", vcpus=99)), lambda c: None, "class", ""),
    ("no such host", a_move(wanted_host="nix"), lambda c: None, "unreadable", "there is no host 'nix'"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("move", "so", "code", "why"), [row[1:] for row in REFUSED], ids=[r[0] for r in REFUSED]
)
async def test_a_move_that_cannot_begin_is_refused_permanently(
    move: MoveRequested, so: Callable[[MovingCloud], object], code: str, why: str
) -> None:
    cloud = a_cloud()
    so(cloud)
    reply = await cloud.refused(move)
    assert (reply.code, reply.move, reply.build) == (code, move.move, move.build)
    assert why in reply.reason
    assert move.move in cloud.placement.unplaceable
    assert cloud.placement.roots(BUILD) == {root(1)} and KEEP not in cloud.placement.held
    again = await cloud.refused(move)
    assert again.reason == reply.reason


async def test_instances_of_a_host_forced_down_can_only_be_evacuated() -> None:
    cloud = a_cloud(a_candidate(1, traits=(FORCED_DOWN,)), a_candidate(2))
    for index, kind in enumerate(("migrate", "live", "shelve"), 1):
        reply = await cloud.refused(a_move(index, kind))
        assert reply.code == "source_down" and "`berth host evacuate host1`" in reply.reason
    await cloud.placed(a_move(9, "evacuate"))


async def test_a_repeated_move_is_answered_from_its_allocations() -> None:
    cloud, asked = a_cloud(), a_move(source="host1")  # afterwards it is on another host
    first = await cloud.placed(asked)
    _, cloud.moves = cloud.another()
    again = await cloud.placed(asked)
    assert first.chosen is not None and again.chosen is not None
    assert (again.chosen.root, again.chosen.host, again.chosen.agent) == (
        first.chosen.root,
        first.chosen.host,
        first.chosen.agent,
    )
    assert (again.generation, again.attempt, again.spec) == (first.generation, first.attempt, first.spec)
    assert {alternate.root for alternate in again.alternates} == {
        alternate.root for alternate in first.alternates
    }
    assert cloud.placement.roots(KEEP) == {root(1)}
    cloud.cells.know(a_build_that_stands(2, status="moving", move=MOVE, attempt=2, generation=2))
    assert await cloud.come_of(asked) == []
    cloud.cells.know(a_build_that_stands(2, move=MOVE, attempt=2, generation=2))  # over
    assert await cloud.come_of(asked) == []


@pytest.mark.parametrize("kind", ["shelve", "rebuild"])
async def test_moves_without_a_claim_are_published_again_when_redelivered(kind: str) -> None:
    cloud = a_cloud()
    move = a_move(1, kind, image=Image(name="i") if kind == "rebuild" else None)
    assert await cloud.placed(move) == await cloud.placed(move)
    cloud.cells.know(a_build_that_stands(1, move=MOVE, attempt=2))  # until its cell knows of it
    assert await cloud.come_of(move) == []


async def test_a_begun_move_that_its_cell_has_lost_with_the_instance_is_refused() -> None:
    cloud, move = a_cloud(), a_move(1, "rebuild", image=Image(name="i"))
    await cloud.placed(move)
    cloud.cells.stands, cloud.placement.retired[BUILD] = {"cell1": {}}, "deleted"
    cloud.cells.recorded = {MOVE}
    await cloud.retry(move)
    cloud.time.now += 61
    assert await cloud.come_of(move) == []  # its cell publishes how it ends
    cloud.cells.recorded = set()
    await cloud.retry(move)
    cloud.time.now += 61
    reply = await cloud.refused(move)
    assert reply.code == "unknown" and "no cell has a record of it" in reply.reason
    assert await cloud.refused(move) == reply  # the broker may deliver the request more than once


async def test_one_of_two_moves_of_a_build_begins() -> None:
    cloud = a_cloud()
    first, second = await cloud.moves.place_many([a_move(1), a_move(2)])
    assert not isinstance(first, Retry | Poison) and isinstance(first[0], MovePlaced)
    assert isinstance(second, Retry)
    cloud.cells.know(a_build_that_stands(2, status="moving", move=MOVE, attempt=2, generation=2))
    assert (await cloud.refused(a_move(2))).code == "moving"


async def test_allocations_changed_by_another_client_are_not_touched() -> None:
    cloud = a_cloud(generation=7)
    await cloud.retry(a_move())
    cloud.time.now += 31
    assert (await cloud.refused(a_move())).code == "held"
    assert cloud.placement.roots(BUILD) == {root(1)}


async def test_a_move_refused_by_one_scheduler_is_not_begun_by_another() -> None:
    """Its host is taken for full by the one, and there is room by the time the other claims."""
    cloud = a_cloud(hosts=1)
    full = await cloud.refused(a_move())
    cloud.placement.source.unpublished.append(a_candidate(2))
    cloud.placement.hosts[root(2)] = a_candidate(2)
    cloud.placement.free[root(2)] = dict(a_candidate(2).free)
    await cloud.placement.source.fresh()
    assert (await cloud.refused(a_move())).reason == full.reason
    assert cloud.placement.roots(BUILD) == {root(1)}


async def test_a_redelivered_refused_move_repeats_the_first_reason() -> None:
    cloud = a_cloud(hosts=1, status="building")
    first = await cloud.refused(a_move())
    cloud.cells.know(a_build_that_stands(1))
    again = await cloud.refused(a_move())
    assert again.reason == first.reason
    assert (first.code, again.code, again.decision) == ("status", "", Decision())


async def test_an_ended_instance_does_not_move() -> None:
    cloud = a_cloud()
    cloud.placement.retired[BUILD] = "deleted"
    reply = await cloud.refused(a_move())
    assert (reply.code, reply.reason) == ("status", "it has ended: deleted")


async def test_a_late_duplicate_of_a_move_that_is_over_begins_nothing() -> None:
    cloud = a_cloud()
    await cloud.placed(a_move(1))
    cloud.cells.recorded.add(MOVE)
    del cloud.placement.held[KEEP]  # it is over, and so is the next one
    cloud.cells.know(a_build_that_stands(2, move=uid(2, "e"), attempt=3, generation=4))
    assert await cloud.come_of(a_move(1)) == []
    del cloud.placement.held[BUILD]
    cloud.cells.stands["cell1"].clear()
    assert await cloud.come_of(a_move(1)) == []


# Its cell has not received the order, and changed the instance


def deleted(cloud: MovingCloud) -> None:
    cloud.placement.held.clear()
    cloud.cells.know(a_build_that_stands(1, status="deleted", generation=None))


async def test_a_rebuild_is_not_repeated_in_another_cell() -> None:
    cloud = a_cloud()
    rebuild = a_move(1, "rebuild", image=Image(name="i"))
    await cloud.placed(rebuild)
    cloud.cells.recorded.add(MOVE)
    cloud.placement.hosts[root(1)] = a_candidate(1, cell="cell2")
    cloud.cells.stands = {"cell1": {}, "cell2": {BUILD: a_build_that_stands(1, cell="cell2", attempt=3)}}
    assert await cloud.come_of(rebuild) == []


async def test_a_begun_move_is_retried_while_its_cell_is_silent() -> None:
    cloud = a_cloud()
    await cloud.placed(a_move())
    cloud.cells.silent.add("cell1")
    for _ in range(3):
        await cloud.retry(a_move())
        cloud.time.now += 61
    cloud.cells.silent.clear()
    await cloud.placed(a_move())


async def undone(cloud: MovingCloud, placed: MovePlaced) -> MoveRefused | None:
    with pytest.raises(Retry):
        await cloud.moves.undoing.undo_placed(placed)
    cloud.time.now += 61
    return await cloud.moves.undoing.undo_placed(placed)


async def test_a_move_without_a_conductor_is_undone_and_refused() -> None:
    cloud = a_cloud()
    reply = await undone(cloud, await cloud.placed(a_move(reply_to="me")))
    assert reply is not None and "no conductor accepts moves there" in reply.reason
    assert (reply.code, reply.reply_to) == ("no_conductor", "me")
    assert cloud.placement.roots(BUILD) == {root(1)}
    assert KEEP not in cloud.placement.held
    assert cloud.placement.retired.keys() == {MOVE, undo_claim_id(MOVE)}
    again = await cloud.refused(a_move())
    assert again.reason == reply.reason


async def test_an_undone_move_stays_undone_and_the_instance_can_move_again() -> None:
    cloud = a_cloud()
    await undone(cloud, await cloud.placed(a_move(1)))
    cloud.cells.know(a_build_that_stands(1, generation=3))
    await cloud.placed(a_move(2))
    assert (await cloud.refused(a_move(1))).code == "no_conductor"
    assert cloud.placement.roots(KEEP) == {root(1)}


async def test_a_move_that_its_cell_continues_is_not_undone() -> None:
    cloud = a_cloud()
    placed = await cloud.placed(a_move())
    cloud.placement.held[BUILD] = Holding(3, cloud.placement.held[BUILD].allocations)
    assert await undone(cloud, placed) is None
    assert cloud.placement.roots(KEEP) == {root(1)}


@pytest.mark.parametrize("kind", ["shelve", "rebuild", "unshelve"])
async def test_moves_without_a_holder_are_undone_as_well(kind: str) -> None:
    cloud = a_cloud()
    if kind == "unshelve":
        shelved(cloud)
    move = a_move(1, kind, image=Image(name="i") if kind == "rebuild" else None)
    reply = await undone(cloud, await cloud.placed(move))
    assert reply is not None and reply.code == "no_conductor"
    assert cloud.placement.roots(BUILD) == (set() if kind == "unshelve" else {root(1)})
    assert (await cloud.refused(move)).reason == reply.reason
