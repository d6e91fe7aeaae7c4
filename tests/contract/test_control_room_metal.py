"""Bare metal in the control room, with an Ironic API and a placement."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx
import pytest

import berth.ironic
from berth import control_room_metal
from berth.control_room_metal import metal
from berth.settings import Settings
from bus.claims import Choice
from bus.ironic import UNKNOWN_TIME, IronicSpoke, NodeChanged
from bus.reports import Inventory
from bus.resources import Edited, SetInventories
from control_room.core.metal import MetalNodes
from control_room.pages import hosts as pages
from ironic_sync.core.node import Place, from_rest
from ironic_sync.core.rule import inventory_of
from ironic_sync.core.rule import report as reported
from ironic_sync.core.selection import NodeSelection
from ironic_sync.worker import FollowedIronic
from placement_worker import Placement
from tests.support.fake_ironic import FakeIronic, fault, node_number
from tests.support.ids import uid
from tests.support.placement_builders import a_claim, a_placement, an_order
from tests.support.placement_calls import claim, edit, find_providers, report, silent_placement
from tests.support.visited_room import VisitedRoom, a_visited_room
from tests.support.waiting import until

READS = Settings().having(ironic_api="http://ironic.test")
REPORTED = 1_600_000_000  # a minute before the room's now


@pytest.fixture
def ironic(monkeypatch: pytest.MonkeyPatch) -> FakeIronic:
    fake = FakeIronic()

    def followed(*_: object) -> FollowedIronic:
        return FollowedIronic(selection=NodeSelection(cell="c1"), api=fake.api())

    monkeypatch.setattr(berth.ironic, "followed", followed)
    monkeypatch.setattr(pages, "_UNWATCHED_SECONDS", 0.0)  # every request reads the nodes
    return fake


@dataclass
class PlacedRoom(VisitedRoom):
    placement: Placement


@asynccontextmanager
async def a_room(settings: Settings, *nodes: dict[str, Any], agent: str = "") -> AsyncIterator["PlacedRoom"]:
    async with a_placement("sqlite+aiosqlite://") as placement:
        for node in nodes:
            usual = "c1-metal" if settings.ironic.is_read else "c1-agent1"
            await _report(placement, node, agent or usual)
        worker = silent_placement(placement)
        async with a_visited_room(worker, answered=("providers",), settings=settings) as room:
            room.clock.now = REPORTED + 60.0
            room.bus.clock = room.clock.clock
            yield PlacedRoom(**vars(room), placement=placement)


async def _report(placement: Placement, node: dict[str, Any], agent: str) -> None:
    reply = reported(from_rest(node), Place(cell="c1", agent=agent), REPORTED * 1_000_000)
    assert reply is not None
    assert await report(placement, reply) == [""]
    if node["uuid"] == node_number(1):
        taken = await claim(placement, an_order(a_claim(7, Choice({node_number(1): {"CUSTOM_GOLD": 1}}))))
        assert type(taken[0]).__name__ == "Claimed"


async def test_a_node_shows_ironics_state_placements_record_and_their_differences(ironic: FakeIronic) -> None:
    for number in (1, 2, 3):
        ironic.have(number)
    was = [dict(node) for node in ironic.nodes.values()]
    ironic.change(2, maintenance=True, maintenance_reason="fan <3>", traits=["CUSTOM_NEW"])
    del ironic.nodes[node_number(3)]
    ironic.have(4, provision_state="clean failed", last_error="no disk")
    async with a_room(READS, *was) as room:
        page = await room.page("/metal?wait=1")
        alone = await room.page("/metal?wait=1&state=maintenance")
        nothing = await room.page("/metal?wait=1&q=nobody")
    assert "held" in page and f"/builds/{uid(7)}" in page and "as of 60 s ago" in page
    assert "it is in maintenance: fan &lt;3&gt;" in page
    assert "reserved: Ironic has 1, placement has 0; traits: only Ironic has CUSTOM_NEW" in page
    assert "Ironic does not have it any more" in page
    assert "Ironic has it clean failed: no disk; placement does not have it" in page
    assert f"/hosts/{node_number(2)}" in alone and f"/hosts/{node_number(1)}" not in alone
    assert "No node matches" in nothing


def refuses(_: httpx.Request) -> httpx.Response:
    return fault(401, "who are you")


def titles(page: str) -> set[str]:
    """Return the headings of the page, each with its number of nodes."""
    return {f"{title.strip()} {count}" for title, count in re.findall(r"<h2>([^<]+)<small>(\d+) node", page)}


async def test_without_any_answer_of_ironic_only_placements_record_is_shown(ironic: FakeIronic) -> None:
    ironic.have(1)
    ironic.have(2, provision_state="cleaning")
    was = [dict(node) for node in ironic.nodes.values()]
    async with a_room(READS, *was) as room:
        ironic.before = refuses
        page = await room.page("/metal?wait=1")
    assert "Ironic does not answer: " in page and "who are you" in page
    assert "It has not answered since this control room started" in page
    assert titles(page) == {"Claimed 1", "At work 1"}
    assert "<b>n1</b>" in page and "<b>n2</b>" in page


async def test_while_ironic_does_not_answer_its_previous_answer_is_shown(ironic: FakeIronic) -> None:
    ironic.have(1)
    was = dict(ironic.nodes[node_number(1)])
    ironic.have(2, provision_state="enroll", power_state=None)
    ironic.have(3, provision_state="clean failed", last_error="no disk")
    async with a_room(READS, was) as room:
        assert titles(await room.page("/metal?wait=1")) == {"Held 1", "Not ready 1", "Failed 1"}
        ironic.before = refuses
        room.clock.now += 300.0
        page = await room.page("/metal?wait=1")
    assert "Its previous answer is shown, which is 5 min old" in page
    assert titles(page) == {"Held 1", "Not ready 1", "Failed 1"}
    assert "Ironic has it clean failed: no disk" in page and "<b>n3</b>" in page
    assert "as of 5 min ago" in page


async def test_while_placement_does_not_answer_the_previous_nodes_are_shown(
    ironic: FakeIronic, monkeypatch: pytest.MonkeyPatch
) -> None:
    ironic.have(1)
    async with a_room(READS, dict(ironic.nodes[node_number(1)])) as room:
        assert titles(await room.page("/metal?wait=1")) == {"Held 1"}

        async def is_away(*_: object) -> MetalNodes:
            return MetalNodes(at=0.0, reads_ironic=True, placement_problem="no answer in time")

        monkeypatch.setattr(control_room_metal, "_both_sides", is_away)
        room.clock.now += 300.0
        page = await room.page("/metal?wait=1")
    assert "The nodes as they were 5 min ago are shown" in page
    assert titles(page) == {"Held 1"}


async def test_all_holders_of_a_node_are_shown(ironic: FakeIronic) -> None:
    ironic.have(1)
    async with a_room(READS, dict(ironic.nodes[node_number(1)])) as room:
        (node,) = await find_providers(room.placement, ids=(node_number(1),))
        both = {**node.inventories, "VCPU": Inventory(total=1, max_unit=1)}
        set_both = SetInventories(provider=node.id, inventories=both, generation=None)
        edited = await edit(room.placement, set_both)
        assert isinstance(edited, Edited)
        (taken,) = await claim(room.placement, an_order(a_claim(8, Choice({node.id: {"VCPU": 1}}))))
        assert type(taken).__name__ == "Claimed"
        page = await room.page("/metal?wait=1")
    assert f"/builds/{uid(7)}" in page and f"/builds/{uid(8)}" in page
    assert f"{uid(7)} and {uid(8)} hold it" in page


async def test_the_page_without_ironic_shows_placements_record(ironic: FakeIronic) -> None:
    ironic.have(1)
    ironic.have(2, maintenance=True)
    async with a_room(Settings().having(cells=("c1",)), *ironic.nodes.values()) as room:
        page = await room.page("/metal?wait=1")
    assert "Ironic itself is not read from here" in page
    assert titles(page) == {"Claimed 1", "In maintenance 1"}
    received = "placement received 60 s ago that nothing can be deployed on it"
    assert f"{received}: the node is in maintenance" in page
    assert f"/builds/{uid(7)}" in page


async def test_stuck_nodes_are_shown_from_the_notifications_alone(ironic: FakeIronic) -> None:
    ironic.have(1)
    ironic.have(2, provision_state="clean failed")
    ironic.have(3, provision_state="cleaning")
    settings = Settings().having(cells=("c1",), ironic_amqp_url="amqp://ironic.test/")
    async with a_room(settings, *ironic.nodes.values(), agent="c1-metal") as room:
        room.clock.now = REPORTED + 3600.0
        page = await room.page("/metal?wait=1")
        found = await metal(settings, room.bus)
    assert titles(page) == {"Claimed 1", "Failed 1", "At work 1"}
    assert "1 node is stuck" in page
    assert "stuck for 60 min: an operation of Ironic on it has failed" in page
    assert [(stuck.name, stuck.since) for stuck in found.stuck(room.clock.now)] == [("n2", REPORTED)]


@pytest.mark.parametrize("at", [UNKNOWN_TIME, UNKNOWN_TIME + 1e-6, 60.0])
async def test_the_time_of_a_state_without_a_time_is_not_shown(ironic: FakeIronic, at: float) -> None:
    event = NodeChanged(
        event="create", node=node_number(1), name="metal-1", at=at, cell="c1", agent="c1-agent1",
        resource_class="gold", provision_state="available",
    )  # fmt: skip
    async with a_room(Settings().having(cells=("c1",))) as room:
        sent = inventory_of(event)
        assert sent is not None and await report(room.placement, sent) == [""]
        page = await room.page("/metal?wait=1")
    assert titles(page) == {"Free 1"} and "<b>metal-1</b>" in page
    assert "as of" not in page and "days" not in page


def reply(sent: list[str], text: str) -> bool:
    return text in "".join(sent)


async def test_a_node_is_read_again_after_a_message_about_it(
    ironic: FakeIronic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "SECONDS", 3600.0)
    for number in (1, 2, 3):
        ironic.have(number)
    asked = list[str]()

    def note(request: httpx.Request) -> None:
        asked.append(request.url.path)

    ironic.before = note
    async with a_room(READS, *(dict(node) for node in ironic.nodes.values())) as room:
        async with room.following("/metal/events") as other, room.following("/metal/events") as sent:
            await until(lambda: "Free" in "".join(sent) and "Free" in "".join(other))
            ironic.change(2, maintenance=True, maintenance_reason="fan <3>")
            await room.bus.publish(IronicSpoke(nodes=(node_number(2),)))
            for one in (sent, other):
                await until(partial(reply, one, "it is in maintenance: fan &lt;3&gt;"))
            del ironic.nodes[node_number(3)]
            ironic.have(4, provision_state="clean failed", last_error="no disk")
            await room.bus.publish(IronicSpoke(nodes=(node_number(3), node_number(4))))
            await until(lambda: "Ironic does not have it any more" in "".join(sent))
            await until(lambda: "Ironic has it clean failed: no disk" in "".join(sent))
            assert sum(path.endswith("/nodes") for path in asked) == 1
            assert len([path for path in asked if path.endswith(node_number(2))]) == 1  # for both pages
