"""The Bus page: queues by topic and cell, and dead letters as shown."""

import pytest

from bus.protocol import BusDepths, QueueDepth
from bus.worker import cell_of
from control_room.bus_load import KnownQueue, bus_load, route_of
from control_room.pages.dead_letters import MOST_BODY, letter_details
from tests.support.envelopes import a_letter
from tests.support.ids import uid


@pytest.mark.parametrize(
    ("queue", "topic"),
    [
        ("scheduler:build.requested", "build.requested"),
        ("conductor.c1:build.placed.c1", "build.placed.{cell}"),
        ("agent.c1.a:agent.build.c1.a", "agent.build.{cell}.{agent}"),
        ("ironic_sync:ironic.node.*.*", "ironic.node.{cell}.{event}"),
        ("ask:placement.claim", "placement.claim"),
        ("ask:placement.claim.c1", "placement.claim.{cell}"),
        ("scheduler:build.requested.more", ""),
        ("ask:build.requested", ""),
        ("scheduler:placement.claim", ""),
        ("strange", ""),
        ("", ""),
    ],
)
def test_a_queue_carries_the_topic_or_the_query_of_its_key(queue: str, topic: str) -> None:
    found = route_of(queue)
    assert (found.name if found else "") == topic


def test_a_topic_has_all_its_queues_the_fullest_first() -> None:
    known = [KnownQueue(f"conductor.c{number}:build.placed.c{number}", "conductor") for number in range(4)]
    depths = {
        known[0].name: QueueDepth(1, 1),
        known[1].name: QueueDepth(5, 0),
        known[2].name: QueueDepth(0, 2),
    }
    shown = bus_load([*known, KnownQueue("strange", "?")], BusDepths(depths, dead=3, delayed=2))
    placed = shown.topic("build.placed.{cell}")
    assert placed is not None
    assert [(queue.name[10:12], queue.exists) for queue in placed.queues] == [
        ("c1", True),
        ("c0", True),
        ("c2", True),
        ("c3", False),
    ]
    assert (placed.messages, placed.consumers, placed.unread) == (6, 3, 1)
    assert [queue.name for queue in shown.unread] == [known[1].name]
    assert [queue.name for queue in shown.fullest] == [known[1].name, known[0].name]
    assert (shown.messages, shown.dead, shown.delayed, shown.existing) == (6, 3, 2, 3)
    assert [queue.name for queue in shown.others] == ["strange"]
    asked = shown.topic("placement.claim")
    assert asked is not None and not asked.queues and shown.topic("nothing") is None


@pytest.mark.parametrize(
    ("body", "shown", "about"),
    [
        (b'{"build":"%b","n":[1]}' % uid(7).encode(), '"n": [', (("build", uid(7)),)),
        (b'{"build":"no uuid","request":7}', '"request": 7', ()),
        (b"[1]", "1", ()),
        (b"\xff\x00 no JSON", "\N{REPLACEMENT CHARACTER}\\x00 no JSON", ()),
        ('{"a":"\u202eb"}'.encode(), "\\u202eb", ()),
        (b"[" * 100_000, "[[[", ()),
    ],
)
def test_a_body_is_shown_whatever_it_is(body: bytes, shown: str, about: tuple[tuple[str, str], ...]) -> None:
    whole = letter_details(a_letter(body=body))
    assert shown in whole.body
    assert (whole.about, whole.cut) == (about, False)


def test_truncation_is_marked() -> None:
    whole = letter_details(a_letter(body=b"x" * (MOST_BODY + 1), reason="r " * 400, died=1e300, cell="?"))
    assert (len(whole.body), whole.cut) == (MOST_BODY, True)
    assert whole.letter.reason.endswith(" …") and len(whole.reason) == 800
    assert (whole.letter.died, whole.letter.cell) == (0.0, "unknown")


@pytest.mark.parametrize(
    ("queue", "cell"),
    [
        ("conductor.c1:build.placed.c1", "c1"),
        ("agent.c1.c1-agent1:agent.build.c1.c1-agent1", "c1"),
        ("ask:cell.builds.c1", "c1"),
        ("ask:cell.instances.c1", "c1"),
        ("placement:inventory.reported.c1", ""),
        ("ask:placement.claim.c1", ""),
        ("ask:placement.cells", ""),
        ("scheduler:build.requested", ""),
    ],
)
def test_the_cell_of_a_queue(queue: str, cell: str) -> None:
    assert cell_of(queue) == cell
