"""Bare metal in the control room, with an Ironic API and a placement."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import httpx
import pytest

import berth.ironic
from berth.settings import Settings
from bus.claims import Choice
from bus.ironic import IronicSpoke
from control_room.pages import hosts as pages
from ironic_sync.core.node import Place, from_rest
from ironic_sync.core.rule import report as reported
from ironic_sync.core.selection import NodeSelection
from ironic_sync.worker import FollowedIronic
from placement_worker import Placement
from tests.support.fake_ironic import FakeIronic, fault, node_number
from tests.support.ids import uid
from tests.support.placement_builders import a_claim, a_placement, an_order
from tests.support.placement_calls import claim, report, silent_placement
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
    return fake


@asynccontextmanager
async def a_room(settings: Settings, *nodes: dict[str, Any]) -> AsyncIterator[VisitedRoom]:
    async with a_placement("sqlite+aiosqlite://") as placement:
        for node in nodes:
            await _report(placement, node, "c1-metal" if settings.ironic.is_read else "c1-agent1")
        worker = silent_placement(placement)
        async with a_visited_room(worker, answered=("providers",), settings=settings) as room:
            room.clock.now = REPORTED + 60.0
            yield room


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


async def test_an_unreachable_ironic_is_named_and_placements_record_is_shown(ironic: FakeIronic) -> None:
    ironic.have(1)
    was = dict(ironic.nodes[node_number(1)])

    def refuses(_: httpx.Request) -> httpx.Response:
        return fault(401, "who are you")

    async with a_room(READS, was) as room:
        ironic.before = refuses
        page = await room.page("/metal?wait=1")
    assert "Ironic does not answer: " in page and "who are you" in page
    assert node_number(1) in page and "held" in page


async def test_the_page_without_ironic_shows_placements_record(ironic: FakeIronic) -> None:
    ironic.have(1)
    ironic.have(2, maintenance=True)
    async with a_room(Settings().having(cells=("c1",)), *ironic.nodes.values()) as room:
        page = await room.page("/metal?wait=1")
    assert "Ironic itself is not read from here" in page
    assert "placement received 60 s ago that nothing can be deployed on it" in page
    assert f"/builds/{uid(7)}" in page


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
