"""Clients with a role: the table of acts decides about every topic and query of the bus."""

from typing import Any

import pytest

from bus import topics
from bus.acts import ACTS, RANK
from bus.cells import CellEdited, FindCells
from bus.context import handling
from bus.errors import OperationRefused
from bus.messages import BuildDeleteRequested, BuildEnded
from bus.protocol import decode, encode
from bus.queries import FindInstances
from bus.topics import Query, Topic
from bus.vocabulary import Message
from features.clients.messages import ClientRelay
from features.clients.operator_requests import relayed
from features.clients.tests.support.relayed_region import a_client
from tests.support.acting_region import CLOSE
from tests.support.envelopes import an_envelope
from tests.support.golden_messages import GOLDEN
from tests.support.ids import uid
from tests.support.waiting import until


async def test_an_admin_edits_and_the_record_names_the_client() -> None:
    async with a_client("admin") as (bus, region):
        answer = await bus.asker(topics.EDIT_CELL)(CLOSE)
        assert isinstance(answer.result, CellEdited)
        await until(lambda: [record.outcome for record in region.records] == ["started", "done"])
    record = region.records[-1]
    assert (record.operator.name, record.operator.role, record.interface, record.act) == (
        "ann",
        "admin",
        "bus",
        "cell",
    )


async def test_an_act_with_a_used_message_id_is_recorded_again() -> None:
    relay = ClientRelay(client="ann", to="placement.cell", message=encode(CLOSE).decode())
    envelope = an_envelope(id="chosen by the client")
    async with a_client("admin") as (_, region):
        for _ in range(2):
            with handling([(envelope, relay)]):
                await region.intake.relay(relay)
        await until(lambda: [each.outcome for each in region.records] == ["started", "done"] * 2)
    assert len({record.id for record in region.records}) == 2


def a_message_of(way: Query[Any, Any] | Topic[Any]) -> Message:
    """Return a message of this topic or query, decoded from the golden bytes."""
    kind: type[Message] = way.asks if isinstance(way, Query) else way.message
    return decode(kind, GOLDEN[kind.__name__])


@pytest.mark.parametrize("role", ["", "reader", "operator", "admin"])
async def test_no_message_passes_that_the_table_denies(role: Any) -> None:
    """For each query, a client without the role of its act gets a refusal, and no worker gets the query."""
    least = {message: act.role for act in reversed(ACTS) for message in act.messages}
    async with a_client(role) as (bus, _):
        for name, way in relayed().items():
            message = a_message_of(way)
            needed = least.get(type(message), "reader")
            if isinstance(way, Topic) or RANK[role] >= RANK[needed]:
                continue
            with pytest.raises(OperationRefused, match="takes the role"):
                await bus.asker(way, 0.1)(message)
            assert name


@pytest.mark.parametrize(("build", "passes"), [(uid(1), True), (uid(2), False), (uid(3), False)])
async def test_a_role_limited_to_a_project_deletes_its_instances_only(build: str, passes: bool) -> None:
    order = BuildDeleteRequested(build=build, cell="c1", reply_to="x")
    async with a_client("operator", projects=("p1",)) as (bus, region):
        if passes:
            await bus.publish(order)
            await until(lambda: region.deleted)
        else:
            with pytest.raises(OperationRefused, match="in the projects p1 only"):
                await bus.publish(order)
    assert [deleted.reply_to for deleted in region.deleted] == (["ann_x"] if passes else [])


async def test_a_role_limited_to_a_cell_is_judged_on_the_real_cell() -> None:
    async with a_client("operator", cells=("c1",)) as (bus, region):
        with pytest.raises(OperationRefused, match="in the cells c1 only"):
            await bus.publish(BuildDeleteRequested(build=uid(2), cell="c1"))
        await until(lambda: [record.outcome for record in region.records] == ["denied"])
    assert not region.deleted


async def test_a_role_limited_to_a_project_reads_its_instances_only() -> None:
    async with a_client("reader", projects=("p1",)) as (bus, _):
        ask = bus.asker(topics.FIND_INSTANCES)
        assert (await ask(FindInstances(cell="c1", project="p1"))).last == "p1"
        for question in (FindInstances(cell="c1", project="p2"), FindInstances(cell="c1")):
            with pytest.raises(OperationRefused, match="read: ann may act in the projects p1 only"):
                await ask(question)
        with pytest.raises(OperationRefused):  # its answers are not limited to a project
            await bus.asker(topics.CELLS)(FindCells())


async def test_a_client_cannot_direct_results_to_another_client() -> None:
    async with a_client("operator") as (_, region):
        order = BuildDeleteRequested(build=uid(1), cell="c1", reply_to="victim")
        relay = ClientRelay(client="ann", to="build.delete.{cell}", message=encode(order).decode())
        await region.intake.relay(relay)
        await until(lambda: region.deleted)
    assert region.deleted[0].reply_to == "ann"


async def test_results_arrive_at_the_client() -> None:
    async with a_client("operator") as (bus, region):
        listener = await bus.listen(topics.BUILD_ENDED.at(reply_to="x"))
        ended = BuildEnded(build=uid(1), request=uid(1), cell="c1", status="active", reply_to="ann_x")
        await region.intake.publish(ended)
        assert await listener.get() == ended


INVALID = {
    "an unknown topic": ("agent.build.{cell}.{agent}", "{}", "is no topic or query"),
    "a query of a cell": ("placement.claim.{cell}", "{}", "is no topic or query"),
    "no JSON": ("placement.cell", "{", "placement.cell"),
    "another message": ("placement.cell", '{"edit":{"is":"SetTraits"}}', ""),
}


@pytest.mark.parametrize(("to", "message", "why"), INVALID.values(), ids=INVALID.keys())
async def test_an_unusable_message_is_refused_with_the_reason(to: str, message: str, why: str) -> None:
    async with a_client("admin") as (_, region):
        answered = await region.intake.relay(ClientRelay(client="ann", to=to, message=message))
    assert answered.problem in ("denied", "refused")
    assert answered.why


async def test_an_unregistered_client_is_denied_everything() -> None:
    async with a_client("admin") as (_, region):
        relay = ClientRelay(client="eve", to="placement.cells", message="{}")
        assert (await region.intake.relay(relay)).problem == "denied"
