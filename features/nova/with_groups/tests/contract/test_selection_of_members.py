"""`scheduler.select` for members of server groups of Nova."""

from bus.parts import RequestParts
from bus.sql.database import Database
from features.groups.messages import GroupEditRequested, GroupPart, MakeGroup
from features.groups.store import ServerGroups
from features.nova.selecting import HostSelection
from features.nova.tests.support.selected_hosts import add_hosts, ask, hosts_of
from placement_worker.testing import Placement
from tests.support.ids import uid
from tests.support.placement_builders import a_claim, an_order, on_hosts
from tests.support.placement_calls import claim
from tests.support.scheduler_builders import a_request
from tests.support.schedulers import scheduler_of


async def test_members_that_joined_a_group_elsewhere_count(placement: Placement) -> None:
    scheduler = scheduler_of(placement)
    await add_hosts(placement, scheduler)
    selection = HostSelection(scheduler, Database("sqlite+aiosqlite://"))
    group = MakeGroup(group=uid(9), name="g", policy="anti-affinity", project=a_request().project)
    await placement.of(ServerGroups).edit(GroupEditRequested(edit=group))
    await claim(placement, an_order(a_claim(1, on_hosts(1, VCPU=1)), a_claim(2, on_hosts(2, VCPU=1))))
    parts = RequestParts(GroupPart(group=uid(9), members=tuple(map(uid, (1, 2, 3)))))
    assert hosts_of(await ask(selection, 3, parts=parts)) == ["host-3"]
    parts = RequestParts(GroupPart(group=uid(9), members=tuple(map(uid, (1, 2, 3, 4)))))
    refused = await ask(selection, 4, parts=parts)
    assert refused.refused is not None
    assert "server group" in refused.refused.reason
