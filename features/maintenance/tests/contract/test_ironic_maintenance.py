"""A maintenance window of a bare-metal node sets Ironic's maintenance flag, and removes it at the end."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from berth.kit import disabling, enabling, host_named
from bus import topics
from bus.delivery.runner import Bus
from bus.errors import Unavailable
from bus.local import LocalBroker, LocalTransport
from bus.reports import Inventory
from features.maintenance.windows import CAUSE
from features.moves.host_traits import cause_trait
from ironic_sync.extension import IronicApi
from ironic_sync.testing import REASON, TRAIT, MaintenanceFlags
from tests.support.buses import serving
from tests.support.ids import uid
from tests.support.placement_builders import a_placement, a_report
from tests.support.placement_calls import report, silent_placement

N1, N2, HOST = (uid(number, "a") for number in (1, 2, 3))
METAL = {"CUSTOM_GOLD": Inventory(total=1)}


@dataclass
class FlaggedNodes:
    """Ironic's nodes, with a record of the calls that changed their maintenance flags."""

    nodes_by_id: dict[str, dict[str, Any]]
    calls: list[tuple[str, bool]] = field(default_factory=list)
    fails: bool = False

    async def nodes(self, *, fields: Sequence[str], **filters: Any) -> AsyncIterator[list[dict[str, Any]]]:
        yield [node for node in self.nodes_by_id.values() if node["maintenance"] == filters["maintenance"]]

    async def node(self, uuid: str, fields: Sequence[str] | None = None) -> dict[str, Any] | None:
        return self.nodes_by_id.get(uuid)

    async def set_maintenance(self, uuid: str, on: bool, reason: str = "") -> None:
        if self.fails:
            raise Unavailable("Ironic is away")
        self.calls.append((uuid, on))
        self.nodes_by_id[uuid] |= {"maintenance": on, "maintenance_reason": reason if on else None}


@pytest.fixture
async def bus() -> AsyncIterator[Bus]:
    broker = LocalBroker()
    async with a_placement("sqlite+aiosqlite://") as placement:
        nodes = [a_report(number, inventories=METAL) for number in (1, 2)]
        assert await report(placement, *nodes, a_report(3)) == [""] * 3
        async with serving(lambda: LocalTransport(broker), silent_placement(placement)) as serving_bus:
            yield serving_bus


def ironic(**of_first: Any) -> FlaggedNodes:
    free = {
        "maintenance": False,
        "maintenance_reason": None,
        "instance_uuid": None,
        "provision_state": "available",
    }
    return FlaggedNodes({N1: {"uuid": N1, **free, **of_first}, N2: {"uuid": N2, **free}})


def flags_on(nodes: FlaggedNodes, bus: Bus) -> MaintenanceFlags:
    return MaintenanceFlags(cast(IronicApi, nodes), bus.asker(topics.PROVIDERS))


async def test_a_window_sets_the_flag_once_and_removes_it_at_the_end(bus: Bus) -> None:
    assert cause_trait(CAUSE) == TRAIT
    nodes = ironic()
    flags = flags_on(nodes, bus)
    await flags.step()
    assert nodes.calls == []
    for name in ("host-1", "host-3"):  # host-3 is no node of Ironic
        await disabling(CAUSE)(bus, await host_named(bus, name))
    nodes.fails = True
    await flags.step()
    nodes.fails = False
    for _ in range(2):  # also by another process, after a kill
        await flags_on(nodes, bus).step()
    assert nodes.calls == [(N1, True)] and nodes.nodes_by_id[N1]["maintenance_reason"] == REASON
    await enabling(CAUSE)(bus, await host_named(bus, "host-1"))
    for _ in range(2):
        await flags.step()
    assert nodes.calls == [(N1, True), (N1, False)]


@pytest.mark.parametrize(
    "state",
    [
        {"maintenance": True, "maintenance_reason": "a fan"},
        {"instance_uuid": uid(9)},
        {"provision_state": "cleaning"},
    ],
)
async def test_flags_of_operators_and_nodes_at_work_are_left_alone(bus: Bus, state: dict[str, Any]) -> None:
    nodes = ironic(**state)
    flags = flags_on(nodes, bus)
    await disabling(CAUSE)(bus, await host_named(bus, "host-1"))
    await flags.step()
    await enabling(CAUSE)(bus, await host_named(bus, "host-1"))
    await flags.step()
    assert nodes.calls == []
