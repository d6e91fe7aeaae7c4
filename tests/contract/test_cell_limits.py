"""Restrictions of a cell in placement, for every operation.

Each operation gets the cell from the row of the worker's table.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
import pytest
from msgspec import structs

from bus import topics
from bus.claims import (
    Claimed,
    ClaimRequested,
    Held,
    OutsideCell,
    Refused,
    Released,
    ReleaseRequested,
    Retired,
    holder_consumer,
)
from bus.context import envelope_of, follow
from bus.delivery.runner import Bus
from bus.errors import NoAnswer
from bus.messages import BuildDeleted, BuildDeleteRequested, HostFailed, InventoryReported
from bus.protocol import Envelope, QueueSpec, encode
from bus.queries import BuildsFound, FindBuilds
from bus.reports import Inventory
from bus.resources import FindProviders, OwnerEditRequested, OwnerGiven, ProvidersFound
from bus.vocabulary import Message, Missing
from bus.worker import Worker, answers, on
from placement_worker import Placement
from tests.support.buses import Connect, serving
from tests.support.envelopes import buried, take
from tests.support.ids import uid
from tests.support.placement_builders import a_claim, a_provider, a_release, a_report, an_order, on_hosts
from tests.support.placement_calls import claim, make_providers, report
from tests.support.virtual_time import TurnedClock
from tests.support.waiting import DEADLINE, until

OURS, THEIRS, MINE_TOO, POOL, LONE = 1, 2, 3, 7, 8  # roots: of c1, of c2, of c1, two of operators
SHARED = {"DISK_GB": Inventory(total=100)}
DAY = 24 * 3600 * 1_000_000


@pytest.fixture
async def two_cells(placement: Placement) -> Placement:
    assert await report(placement, a_report(1), a_report(2, cell="c2"), a_report(3)) == ["", "", ""]
    shared = a_provider(7, inventories=SHARED, traits=("MISC_SHARES_VIA_AGGREGATE",))
    await make_providers(placement, shared, a_provider(8))
    beside = {**on_hosts(1), **on_hosts(7, DISK_GB=5)}
    for consumer, held in ((11, on_hosts(1)), (12, on_hosts(2)), (13, beside)):
        [got] = await claim(placement, an_order(a_claim(consumer, held)))
        assert isinstance(got, Claimed), got
    return placement


async def claimed_by(placement: Placement, cell: str, order: ClaimRequested) -> Any:
    [answer] = await placement.claims.claim_many([order], cell=cell)
    return answer.results[0] if len(answer.results) == 1 else answer.results


async def released_by(placement: Placement, cell: str, order: ReleaseRequested) -> Any:
    [answer] = await placement.claims.release_many([order], cell=cell)
    return answer.result


async def reported_by(placement: Placement, cell: str, *reports: InventoryReported) -> Sequence[str]:
    return [str(poison or "") for poison in await placement.reports.report_many(reports, cell=cell)]


async def still_there(placement: Placement, consumer: int) -> bool:
    """Return whether a consumer's allocations are still those that the fixture made."""
    result = await claimed_by(placement, "", an_order(a_claim(consumer, on_hosts(3), generation=99)))
    return isinstance(result, Held) and result.generation == 1


# Reports


async def test_reports_about_roots_of_another_cell_are_refused(two_cells: Placement) -> None:
    before = two_cells.memory.index.rows[uid(2, "a")]
    gone = InventoryReported(root=uid(2, "a"), host="h", cell="c1", agent="a", sequence=2**40, gone=True)
    for forged in (gone, a_report(2, sequence=2**40), a_report(2, sequence=DAY)):
        [why] = await reported_by(two_cells, "c1", forged)
        assert "of cell c2" in why and "c1" in why
    assert two_cells.memory.index.rows[uid(2, "a")] is before
    grown = a_report(2, cell="c2", sequence=2, inventories={"VCPU": Inventory(total=9)})
    assert await reported_by(two_cells, "c2", grown) == [""]  # the owner's report is accepted
    assert two_cells.memory.index.rows[uid(2, "a")].capacity["VCPU"] == 9


async def test_a_cell_cannot_report_in_the_name_of_another(two_cells: Placement) -> None:
    [why] = await reported_by(two_cells, "c1", a_report(2, cell="c2", sequence=5))
    assert why == "InventoryReported: cell: cell c1 cannot report for cell c2"
    assert await reported_by(two_cells, "c2", a_report(2, cell="c2", sequence=4)) == [""]


async def test_roots_created_by_an_operator_belong_to_no_cell(two_cells: Placement) -> None:
    before = two_cells.memory.index.rows[uid(7, "a")]
    [why] = await reported_by(two_cells, "c1", a_report(7, inventories=SHARED))
    assert "an operator made it" in why and "berth provider reset" in why
    assert two_cells.memory.index.rows[uid(7, "a")] is before


async def test_a_refused_report_does_not_affect_others_of_its_batch(two_cells: Placement) -> None:
    wrong = a_report(2, sequence=5)
    assert [bool(why) for why in await reported_by(two_cells, "c1", a_report(4), wrong, a_report(5))] == [
        False, True, False,
    ]  # fmt: skip
    assert {uid(4, "a"), uid(5, "a")} <= two_cells.memory.index.rows.keys()


async def test_the_first_cell_that_reports_a_root_as_gone_owns_it(two_cells: Placement) -> None:
    gone = InventoryReported(root=uid(4, "a"), host="h", cell="c1", agent="a", sequence=2, gone=True)
    assert await reported_by(two_cells, "c1", gone) == [""]
    [why] = await reported_by(two_cells, "c2", a_report(4, cell="c2", sequence=3))
    assert "of cell c1" in why


async def test_a_sequence_is_at_most_a_day_ahead(two_cells: Placement, turned: TurnedClock) -> None:
    now = int(turned.now * 1_000_000)
    assert await reported_by(two_cells, "c1", a_report(1, sequence=now + DAY - 1)) == [""]
    for ahead in (now + DAY + 1_000_000, 2**62):
        [why] = await reported_by(two_cells, "c1", a_report(3, sequence=ahead))
        assert why.startswith("InventoryReported: sequence:") and "a day ahead" in why
    assert await reported_by(two_cells, "c1", a_report(3, sequence=now)) == [""]
    turned.now += 2 * 24 * 3600  # a clock that was ahead by less than a day is caught up with
    [seen] = (
        await two_cells.lookups.providers(FindProviders(ids=(uid(1, "a"),), parts=("owner",)))
    ).providers
    assert await reported_by(two_cells, "c1", a_report(1, sequence=int(turned.now * 1_000_000))) == [""]
    assert seen.sequence < turned.now * 1_000_000


async def test_a_name_used_by_another_cell_gets_the_cell_as_suffix(two_cells: Placement) -> None:
    squatted = a_report(4, cell="c2", name="host-1")
    assert await reported_by(two_cells, "c2", squatted) == [""]
    names = {
        provider.id: provider.name
        for provider in (await two_cells.lookups.providers(FindProviders())).providers
    }
    assert names[uid(1, "a")] == "host-1" and names[uid(4, "a")] == "host-1@c2"
    again = structs.replace(squatted, sequence=2)
    assert await reported_by(two_cells, "c2", again) == [""]
    assert two_cells.memory.index.rows[uid(4, "a")].host == "host-4"


async def test_a_name_whose_suffixed_form_is_taken_too_gets_the_uuid(two_cells: Placement) -> None:
    assert await reported_by(two_cells, "c1", a_report(5, name="x"), a_report(6, name="x@c2")) == ["", ""]
    assert await reported_by(two_cells, "c2", a_report(4, cell="c2", name="x")) == [""]
    [provider] = (await two_cells.lookups.providers(FindProviders(ids=(uid(4, "a"),)))).providers
    assert provider.name == f"x@c2@{uid(4, 'a')}"


async def test_a_name_is_available_after_its_owner_was_renamed(two_cells: Placement) -> None:
    assert await reported_by(two_cells, "c1", a_report(5, name="x")) == [""]
    assert await reported_by(two_cells, "c2", a_report(4, cell="c2", name="x")) == [""]
    assert await reported_by(two_cells, "c1", a_report(5, name="y", sequence=2)) == [""]
    assert await reported_by(two_cells, "c2", a_report(4, cell="c2", name="x", sequence=2)) == [""]
    [provider] = (await two_cells.lookups.providers(FindProviders(ids=(uid(4, "a"),)))).providers
    assert provider.name == "x"


async def test_an_operator_undoes_a_wrong_owner_and_sequence(
    two_cells: Placement, turned: TurnedClock
) -> None:
    ahead = int(turned.now * 1_000_000) + DAY // 2
    assert await reported_by(two_cells, "c1", a_report(4, sequence=ahead)) == [""]  # it is c2's in truth
    [why] = await reported_by(two_cells, "c2", a_report(4, cell="c2", sequence=1))
    assert "of cell c1" in why
    given = (await two_cells.reports.give(OwnerEditRequested(root=uid(4, "a"), cell="c2"))).result
    assert isinstance(given, OwnerGiven)
    assert (given.cell, given.agent, given.sequence) == ("c1", "agent-4", ahead)
    row = two_cells.memory.index.rows[uid(4, "a")]
    assert (row.cell, row.agent) == ("c2", "")
    [why] = await reported_by(two_cells, "c1", a_report(4, sequence=ahead + 1))
    assert "of cell c2" in why
    assert await reported_by(two_cells, "c2", a_report(4, cell="c2", sequence=1)) == [""]
    assert two_cells.memory.index.rows[uid(4, "a")].agent == "agent-4"


async def test_an_operator_can_reassign_a_root_that_was_only_reported_as_gone(two_cells: Placement) -> None:
    gone = InventoryReported(root=uid(4, "a"), host="h", cell="c1", agent="a", sequence=2, gone=True)
    assert await reported_by(two_cells, "c1", gone) == [""]
    given = (await two_cells.reports.give(OwnerEditRequested(root=uid(4, "a"), cell="c2"))).result
    assert isinstance(given, OwnerGiven)
    assert await reported_by(two_cells, "c2", a_report(4, cell="c2")) == [""]


async def test_reassigning_an_unknown_root_is_refused(two_cells: Placement) -> None:
    given = (await two_cells.reports.give(OwnerEditRequested(root=uid(9, "a"), cell="c2"))).result
    assert given == Missing(what="provider", names=(uid(9, "a"),))
    assert await reported_by(two_cells, "c1", a_report(9)) == [""]  # the name is not reserved


# Claims


FORGED_CLAIMS = {
    "a consumer of another cell": a_claim(12, on_hosts(1), generation=1),
    "without its fence": a_claim(12, on_hosts(1), generation="any"),
    "onto a host of another cell": a_claim(11, on_hosts(2), generation=1),
    "onto its own and another's": a_claim(11, {**on_hosts(1), **on_hosts(2)}, generation=1),
    "onto what an operator shares with nobody": a_claim(11, {**on_hosts(1), **on_hosts(8)}, generation=1),
    "onto a pool and no host": a_claim(11, on_hosts(7, DISK_GB=1), generation=1),
    "onto nothing": a_claim(11, {}, generation=1),
    "somebody new": a_claim(14, on_hosts(1)),
    "somebody new without a fence": a_claim(14, on_hosts(1), generation="any"),
    "leaving its room to another cell's": a_claim(11, on_hosts(3), generation=1, keep=12),
    "leaving its room to a build to come": a_claim(11, on_hosts(3), generation=1, keep=14),
}


async def test_a_cell_cannot_claim(two_cells: Placement) -> None:
    number = two_cells.memory.index.seen
    for what, forged in FORGED_CLAIMS.items():
        result = await claimed_by(two_cells, "c1", an_order(forged))
        assert isinstance(result, Refused), (what, result)
        assert result.refusals, what
        for refusal in result.refusals:
            assert isinstance(refusal, OutsideCell), what
        assert await still_there(two_cells, 11) and await still_there(two_cells, 12), what
    assert two_cells.memory.index.seen == number


async def test_a_cell_can_claim_for_its_own_builds(two_cells: Placement) -> None:
    beside = {**on_hosts(3), **on_hosts(7, DISK_GB=5)}
    swap = await claimed_by(two_cells, "c1", an_order(a_claim(13, on_hosts(2), beside, generation=1)))
    assert isinstance(swap, Claimed) and swap.choice == 1
    assert isinstance(swap.refused[0], OutsideCell)
    keep = holder_consumer(uid(13), 2)
    leaving = structs.replace(a_claim(13, on_hosts(1), generation=2), keep=keep)
    assert isinstance(await claimed_by(two_cells, "c1", an_order(leaving)), Claimed)
    more = structs.replace(a_claim(13, on_hosts(3), generation=3), keep=keep)  # the holder has allocations
    assert isinstance(await claimed_by(two_cells, "c1", an_order(more)), Claimed)
    released = ReleaseRequested(consumer=keep, generation="any")
    assert isinstance(await released_by(two_cells, "c1", released), Released)


async def test_a_consumer_without_allocations_is_reported_as_held_nothing(two_cells: Placement) -> None:
    result = await claimed_by(two_cells, "c1", an_order(a_claim(14, on_hosts(1), generation=3)))
    assert result == Held(generation=0, allocations={})


async def test_one_forged_claim_fails_its_order_only(two_cells: Placement) -> None:
    good, bad = a_claim(11, on_hosts(3), generation=1), a_claim(12, on_hosts(1), generation=1)
    both = await claimed_by(two_cells, "c1", an_order(good, bad))
    assert [type(one) for one in both] == [Refused, Refused]
    answers = await two_cells.claims.claim_many([an_order(bad), an_order(good)], cell="c1")
    assert [type(answer.results[0]) for answer in answers] == [Refused, Claimed]


# Releases


FORGED_RELEASES = {
    "a consumer of another cell": a_release(12, 1),
    "without its fence": a_release(12, "any"),
    "to retire another's": a_release(12, 1, retire="deleted"),
    "to retire one that was never placed": a_release(14, None, retire="error"),
    "to retire one that was never placed, unfenced": a_release(14, "any", retire="error"),
    "leaving its room to another cell's": a_release(11, 1, keep=12),
    "leaving its room to a build to come": a_release(11, 1, keep=14),
}


async def test_a_cell_cannot_release(two_cells: Placement) -> None:
    number = two_cells.memory.index.seen
    for what, forged in FORGED_RELEASES.items():
        result = await released_by(two_cells, "c1", forged)
        assert isinstance(result, OutsideCell), (what, result)
        assert await still_there(two_cells, 11) and await still_there(two_cells, 12), what
    assert two_cells.memory.index.seen == number
    [placed] = await claim(two_cells, an_order(a_claim(14, on_hosts(3))))
    assert isinstance(placed, Claimed)


async def test_only_the_cell_that_shelved_an_instance_may_end_it(two_cells: Placement) -> None:
    assert isinstance(
        await released_by(two_cells, "c1", a_release(13, 1, retire="shelved", revivable=True)), Released
    )
    ends = a_release(13, None, retire="deleted")
    assert isinstance(await released_by(two_cells, "c2", ends), Retired)
    assert (
        await released_by(two_cells, "", a_release(13, None, retire="shelved", revivable=True))
    ) == Retired(why="shelved", cell="c1", revivable=True)
    assert isinstance(await released_by(two_cells, "c1", ends), Released)
    assert await released_by(two_cells, "c1", ends) == Retired(why="deleted")


async def test_a_cell_releases_and_retires_its_own_builds_idempotently(two_cells: Placement) -> None:
    assert isinstance(await released_by(two_cells, "c1", a_release(13, 1, retire="deleted")), Released)
    for _ in range(2):
        assert await released_by(two_cells, "c1", a_release(13, 1, retire="x")) == Retired(why="deleted")
    result = await claimed_by(two_cells, "c1", an_order(a_claim(13, on_hosts(1), generation=1)))
    assert result == Retired(why="deleted")


async def test_the_reason_of_a_foreign_retirement_is_not_disclosed(two_cells: Placement) -> None:
    await two_cells.claims.release_many([a_release(12, 1, retire="secret of c2")], cell="c2")
    await two_cells.claims.release_many([a_release(14, None, retire="secret of the middle")])
    for consumer in (12, 14):
        ended = await released_by(two_cells, "c1", a_release(consumer, 1))
        assert isinstance(ended, Retired) and "secret" not in ended.why
        assert "secret" in (await released_by(two_cells, "", a_release(consumer, 1))).why


async def test_a_reassigned_host_belongs_to_the_new_cell(two_cells: Placement) -> None:
    await two_cells.reports.give(OwnerEditRequested(root=uid(1, "a"), cell="c2"))
    assert isinstance(await released_by(two_cells, "c1", a_release(11, 1)), OutsideCell)
    assert isinstance(await released_by(two_cells, "c2", a_release(11, 1)), Released)


# Queries


async def test_a_cell_reads_only_the_trees_of_its_agents(two_cells: Placement) -> None:
    async def seen(**query: Any) -> set[str]:
        found = await two_cells.lookups.providers(FindProviders(**query), cell="c1")
        return {provider.id for provider in found.providers}

    everybody = tuple(uid(number, "a") for number in (1, 2, 3, 7, 8))
    ours = {uid(1, "a"), uid(3, "a")}
    assert await seen() == ours
    assert await seen(ids=everybody) == ours
    assert await seen(name="host-2") == set()
    assert await seen(in_tree=uid(2, "a")) == set()
    assert await seen(agents=("agent-1", "agent-2")) == {uid(1, "a")}


async def test_a_page_of_agents_contains_no_agents_of_other_cells(two_cells: Placement) -> None:
    reports = [structs.replace(a_report(n, cell="c2"), agent="same") for n in range(20, 25)]
    reports += [structs.replace(a_report(n), agent="same") for n in range(25, 28)]
    assert not any(await report(two_cells, *reports))
    query = FindProviders(agents=("same",), limit=3)
    found = await two_cells.lookups.providers(query, cell="c1")
    assert [provider.id for provider in found.providers] == [uid(n, "a") for n in range(25, 28)]


BUILD = uid(1)


@pytest.fixture
async def bus(connect: Connect) -> AsyncIterator[Bus]:
    async with Bus(connect()) as bus:
        yield bus


def a_failure(cell: str) -> HostFailed:
    return HostFailed(root=uid(7), host="h", agent="a", cell=cell, build=BUILD, attempt=1)


class OnChange:
    def __init__(self) -> None:
        self.messages: list[Message] = []

    async def failure(self, message: HostFailed) -> None:
        self.messages.append(message)

    async def delete(self, message: BuildDeleteRequested) -> None:
        self.messages.append(message)

    async def providers(self, question: FindProviders) -> ProvidersFound:
        self.messages.append(question)
        return ProvidersFound(providers=())


async def test_a_message_whose_cell_differs_from_its_key_is_a_dead_letter(connect: Connect, bus: Bus) -> None:
    events = OnChange()
    everywhere = Worker("scheduler", consumes=[on(topics.HOST_FAILED, events.failure)])
    forged, true = envelope_of(a_failure("c2"), bus.clock), envelope_of(a_failure("c1"), bus.clock)
    forged.key = "host.failed.c1"
    async with serving(connect, everywhere):
        await bus.transport.publish([forged, true], expected=[True, True])
        (letter,) = await buried(bus.transport)
        await until(lambda: bool(events.messages))
    assert "host.failed.c1" in letter.reason and "host.failed.c2" in letter.reason
    assert events.messages == [a_failure("c1")]


async def test_a_message_sent_to_a_queue_by_name_with_a_foreign_key_is_a_dead_letter(
    connect: Connect, bus: Bus
) -> None:
    events = OnChange()
    worker = Worker("conductor.c1", consumes=[on(topics.BUILD_DELETE.at(cell="c1"), events.delete)])
    queue = worker.queue_of(worker.consumes[0]).name
    async with serving(connect, worker):
        for cell in ("c2", "c1"):
            message = envelope_of(BuildDeleteRequested(build=BUILD, cell=cell), bus.clock)
            await bus.transport.send(queue, message, expected=True)
        (letter,) = await buried(bus.transport)
        await until(lambda: bool(events.messages))
    assert "build.delete.c2" in letter.reason
    assert events.messages == [BuildDeleteRequested(build=BUILD, cell="c1")]


def a_question(bus: Bus, key: str, cell: str, reply_to: str) -> Envelope:
    asked = follow(FindProviders(cell=cell), key, bus.clock)
    asked.reply_to = reply_to
    return asked


ASKED_WRONGLY = [
    pytest.param("ask.placement.providers.c1", "c2", "", "placement.providers.c2", id="for another cell"),
    pytest.param("ask.placement.providers.c1", "c1", "placement.changed", "reply.c1.", id="a topic"),
    pytest.param("ask.placement.providers.c1", "c1", "build.placed.c2", "reply.c1.", id="another's key"),
    pytest.param("ask.placement.providers.c1", "c1", "reply.c2.x", "reply.c1.", id="another cell's replies"),
    pytest.param("ask.placement.providers.c1", "c1", "reply.-c1.x", "reply.c1.", id="of who asks the cell"),
    pytest.param("ask.placement.providers.c1", "c1", "reply.-.x", "reply.c1.", id="the middle's replies"),
    pytest.param("ask.placement.providers", "", "reply.c1.x", "reply.-.", id="a cell's, in the middle"),
    pytest.param("ask.placement.providers", "", "#", "reply.-.", id="everybody"),
]


@pytest.mark.parametrize(("key", "cell", "reply_to", "word"), ASKED_WRONGLY)
async def test_answers_are_only_sent_to_reply_addresses_of_the_same_cell(
    connect: Connect, bus: Bus, key: str, cell: str, reply_to: str, word: str
) -> None:
    events = OnChange()
    worker = Worker(
        "placement",
        answers=[
            answers(topics.PROVIDERS, events.providers),
            answers(topics.CELL_PROVIDERS, events.providers, cell="c1"),
        ],
    )
    listener = QueueSpec("ear", (reply_to or "reply.c2.x",), durable=False)
    inbox = await bus.transport.consume(listener, 10)
    async with serving(connect, worker):
        await bus.transport.publish([a_question(bus, key, cell, reply_to)], expected=[True])
        (letter,) = await buried(bus.transport)
        ours = BuildDeleted(build=BUILD, cell="c1", reply_to="x")
        mark = Envelope(
            id="mark", type="", key=listener.keys[0].replace("#", "k"), body=msgspec.Raw(encode(ours))
        )
        await bus.transport.publish([mark], expected=[True])
        if reply_to == "#":
            while (arrived := await take(inbox)).envelope.id != "mark":
                assert arrived.envelope.key.startswith("ask.")
        else:
            assert (await take(inbox)).envelope.id == "mark"
    assert word in letter.reason
    assert not events.messages


async def test_a_query_without_a_reply_address_is_handled_without_a_reply(connect: Connect, bus: Bus) -> None:
    events = OnChange()
    worker = Worker("placement", answers=[answers(topics.CELL_PROVIDERS, events.providers, cell="c1")])
    async with serving(connect, worker):
        await bus.transport.publish(
            [a_question(bus, "ask.placement.providers.c1", "c1", "")], expected=[True]
        )
        await until(lambda: bool(events.messages))
    assert not await bus.transport.dead_letters()


async def test_a_cell_cannot_answer_for_another(connect: Connect, bus: Bus) -> None:
    refused = asyncio.Event()

    async def answer_late(question: FindBuilds) -> BuildsFound:
        await refused.wait()
        return BuildsFound(builds=())

    overheard: list[Envelope] = []
    c1 = Worker("conductor.c1", answers=[answers(topics.FIND_BUILDS, answer_late, cell="c1")])
    c2 = Worker("conductor.c2", answers=[answers(topics.FIND_BUILDS, _none_known, cell="c2")])
    spy = await bus.transport.consume(QueueSpec("spy", ("ask.cell.builds.c1",), durable=False), 10)
    async with serving(connect, c1, c2) as asking, asyncio.TaskGroup() as group:
        ask = asking.asker(topics.FIND_BUILDS, timeout=0.6)
        await asking.asker(topics.FIND_BUILDS)(FindBuilds(cell="c2", builds=(BUILD,)))  # has a reply address
        question = group.create_task(_refused(ask(FindBuilds(cell="c1", builds=(BUILD,)))))
        overheard.append((await take(spy)).envelope)
        stolen = overheard[0].reply_to
        assert stolen.startswith("reply.-c1.")
        replies = asking._questions._replies["reply.-c2."].name
        forged = Envelope(
            id="f", type="BuildsFound", key=replies, body=msgspec.Raw(b'{"builds":[]}'),
            causation=overheard[0].id,
        )  # fmt: skip
        async with asyncio.timeout(DEADLINE):
            await bus.transport.publish([forged], expected=[True])
            assert await question
        refused.set()


async def _none_known(question: FindBuilds) -> BuildsFound:
    return BuildsFound(builds=())


async def _refused(asking: object) -> bool:
    try:
        await asking  # type: ignore[misc]
    except NoAnswer:
        return True
    return False
