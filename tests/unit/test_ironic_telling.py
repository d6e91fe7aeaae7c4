"""Reports to placement are repeated until its bus accepts them."""

from bus.clock import Clock
from bus.errors import BrokerRefused, Unroutable
from bus.messages import InventoryReported
from ironic_sync.core.known_state import KnownStateRules
from ironic_sync.core.node import from_rest
from ironic_sync.following import Following
from ironic_sync.notifications import EVENTS, SKIPPED
from ironic_sync.reader import NodeRead
from tests.support.fake_ironic import FakeIronic
from tests.support.ironic_builders import PLACE, a_notification

ASKED = ("update.start", "asked")


class Bad:
    """A bus that takes nothing at first, and some reports never."""

    def __init__(self, away: int = 0, never: str = "") -> None:
        self.away = away
        self.never = never
        self.took: list[InventoryReported] = []

    async def publish(self, *reports: InventoryReported) -> None:
        if self.away:
            self.away -= 1
            raise Unroutable("no queue is bound to inventory.reported")
        if any(report.root == self.never for report in reports):
            raise BrokerRefused("too much of it")
        self.took += reports


def heard_by(bus: Bad) -> Following:
    return Following(KnownStateRules(place=lambda node: PLACE), bus.publish, Clock())


async def test_reports_wait_for_the_bus() -> None:
    ironic, bus = FakeIronic(), Bad(away=4)
    node = ironic.nodes[ironic.have(1)]
    await heard_by(bus).handle([a_notification("provision_set.end", 1_790_000_000.5, node)])
    assert [report.root for report in bus.took] == [node["uuid"]]


async def test_a_report_that_cannot_be_published_does_not_block_later_reports() -> None:
    ironic = FakeIronic()
    nodes = [ironic.nodes[ironic.have(number)] for number in (1, 2, 3)]
    bus = Bad(never=nodes[1]["uuid"])
    reply = [a_notification("provision_set.end", 1_790_000_000.5, node) for node in nodes]
    await heard_by(bus).handle(reply)
    assert [report.root for report in bus.took] == [nodes[0]["uuid"], nodes[2]["uuid"]]


async def test_unreadable_and_foreign_notifications_are_counted() -> None:
    def counts() -> list[float]:
        counters = *(SKIPPED.labels(reason) for reason in ("unreadable", "not a node")), EVENTS.labels(*ASKED)
        return [counter._value.get() for counter in counters]

    ironic, bus, before = FakeIronic(), Bad(), counts()
    node = ironic.nodes[ironic.have(1)]
    port = a_notification("x", 1.0, node).replace(b"baremetal.node.x", b"baremetal.port.create.end")
    bad = a_notification("update.end", 1.0, node | {"traits": ["no trait"]})
    asked, good = (a_notification(event, 1.0, node) for event in ("update.start", "provision_set.end"))
    await heard_by(bus).handle([b"\x00", b"{}", port, bad, asked, good, b"["])
    assert [report.root for report in bus.took] == [node["uuid"]]
    assert [after - was for after, was in zip(counts(), before, strict=True)] == [3, 1, 1]


async def test_a_node_with_an_event_during_its_read_is_read_again() -> None:
    ironic, bus = FakeIronic(), Bad()
    node = ironic.nodes[ironic.have(1)]
    wished: list[str] = []
    rules = KnownStateRules(place=lambda node: PLACE, can_read=True)
    following = Following(rules, bus.publish, Clock(), wished.append)
    began = following.moment()
    await following.handle([a_notification("provision_set.end", 1_790_000_000.5, node)])
    assert wished == [node["uuid"]]
    await following.found([NodeRead(node["uuid"], from_rest(node), began)])
    assert wished == [node["uuid"]] * 2 and not bus.took
    await following.found([NodeRead(node["uuid"], from_rest(node), following.moment())])
    assert len(wished) == 2 and len(bus.took) == 1
