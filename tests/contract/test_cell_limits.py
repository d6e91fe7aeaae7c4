"""Restrictions of a cell in placement, for every operation.

Each operation gets the cell from the row of the worker's table.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from bus import topics
from bus.claims import Choice, Claimed, ClaimRequested, Held, OutsideCell, Refused, ReleaseRequested, Retired
from bus.context import envelope_of, follow
from bus.delivery.runner import Bus
from bus.errors import NoAnswer
from bus.messages import BuildDeleted, BuildDeleteRequested, HostFailed, InventoryReported
from bus.parts import ChoiceParts, ClaimParts, Part
from bus.protocol import Envelope, QueueSpec, encode
from bus.queries import BuildsFound, FindBuilds
from bus.reports import Inventory
from bus.resources import FindProviders, ProvidersFound
from bus.vocabulary import Message
from bus.worker import Worker, answers, on
from placement_worker import Placement
from tests.support.buses import Connect, serving
from tests.support.envelopes import buried, take
from tests.support.ids import uid
from tests.support.placement_builders import a_claim, a_provider, a_release, a_report, an_order, on_hosts
from tests.support.placement_calls import claim, make_providers, report
from tests.support.virtual_time import TurnedClock
from tests.support.waiting import patience, until

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
    [why] = await reported_by(two_cells, "c1", a_report(7, inventories=SHARED))
    assert "an operator made it" in why
    grown = a_report(2, cell="c2", sequence=2, inventories={"VCPU": Inventory(total=9)})
    assert await reported_by(two_cells, "c2", grown) == [""]  # the owner's report is accepted
    assert two_cells.memory.index.rows[uid(2, "a")].capacity["VCPU"] == 9


async def test_a_cell_cannot_report_in_the_name_of_another(two_cells: Placement) -> None:
    [why] = await reported_by(two_cells, "c1", a_report(2, cell="c2", sequence=5))
    assert why == "InventoryReported: cell: cell c1 cannot report for cell c2"
    assert await reported_by(two_cells, "c2", a_report(2, cell="c2", sequence=4)) == [""]


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


async def test_a_name_whose_suffixed_form_is_taken_too_gets_the_uuid(two_cells: Placement) -> None:
    assert await reported_by(two_cells, "c1", a_report(5, name="x"), a_report(6, name="x@c2")) == ["", ""]
    assert await reported_by(two_cells, "c2", a_report(4, cell="c2", name="x")) == [""]
    [provider] = (await two_cells.lookups.providers(FindProviders(ids=(uid(4, "a"),)))).providers
    assert provider.name == f"x@c2@{uid(4, 'a')}"


# Claims


class Colors(Part, frozen=True):
    """A part that no rule admits in claims of cells."""


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
    "leaving its room to another instance of the cell": a_claim(11, on_hosts(3), generation=1, keep=13),
    "for another project": a_claim(11, on_hosts(3), generation=1, project="victim"),
    "for another user": replace(a_claim(11, on_hosts(3), generation=1), user="mallory"),
    "as another type": a_claim(11, on_hosts(3), generation=1, type="CLEANUP"),
    "with a part of a feature": replace(a_claim(11, on_hosts(3), generation=1), parts=ClaimParts(Colors())),
    "a choice with a part of a feature": a_claim(
        11, Choice(on_hosts(3), parts=ChoiceParts(Colors())), generation=1
    ),
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


async def test_the_reason_of_a_foreign_retirement_is_not_disclosed(two_cells: Placement) -> None:
    await two_cells.claims.release_many([a_release(12, 1, retire="secret of c2")], cell="c2")
    await two_cells.claims.release_many([a_release(14, None, retire="secret of the middle")])
    for consumer in (12, 14):
        ended = await released_by(two_cells, "c1", a_release(consumer, 1))
        assert isinstance(ended, Retired) and "secret" not in ended.why
        assert "secret" in (await released_by(two_cells, "", a_release(consumer, 1))).why


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
            await bus.transport.delay(queue, message, 0.0)
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
        async with patience():
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
