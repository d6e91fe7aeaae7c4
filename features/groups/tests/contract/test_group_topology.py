"""Claims keep the topology of a server group on both databases, also claims of conductors."""

import pytest

from berth.kit.testing import placement_breaches
from bus.claims import Claimed, Refused, RuleRefused
from bus.domains import LabelEditRequested
from features.groups.constraints import DomainConstraints
from features.groups.messages import FindGroups, GroupEditRequested, MakeGroup
from features.groups.store import ServerGroups
from features.groups.tests.support.group_parts import joining
from placement_worker.testing import Placement
from tests.support.ids import uid
from tests.support.placement_builders import a_claim, a_release, a_report, on_hosts
from tests.support.placement_calls import must_take, take

GROUP = uid(1, "9")
RACKS = {1: "r1", 2: "r1", 3: "r2", 4: "r3", 5: ""}


@pytest.fixture(autouse=True)
async def hosts(placement: Placement) -> None:
    await placement.reports.report_many([a_report(number) for number in RACKS])
    for number, rack in RACKS.items():
        if rack:
            order = LabelEditRequested(roots=(uid(number, "a"),), set={"rack": rack})
            await placement.reports.label(order)


async def make(placement: Placement, topology: DomainConstraints) -> None:
    edit = MakeGroup(group=GROUP, name="db", policy="topology", project="p1", topology=topology)
    await placement.of(ServerGroups).edit(GroupEditRequested(edit=edit))


def violated(host: int, constraint: str, required: str = "", members: int = 0) -> RuleRefused:
    root, label = uid(host, "a"), RACKS[host]
    why = "the host has no label of this level"
    if label:
        there = f"members of the group in {required}" if required else f"{members} members there"
        why = f"it is in {label}, {there}"
    why = f"{root}: {constraint}: {why}"
    return RuleRefused(rule="topology", code="topology", why=why, provider=root)


async def test_a_packed_group_stays_in_the_rack_of_its_members(placement: Placement) -> None:
    await make(placement, DomainConstraints(pack="rack"))
    await must_take(placement, a_claim(1, on_hosts(1), parts=joining(GROUP)))
    [refused] = await take(placement, a_claim(2, on_hosts(3), parts=joining(GROUP)))
    assert refused == Refused(refusals=(violated(3, "pack rack", "r1"),))
    [second] = await take(placement, a_claim(2, on_hosts(3), on_hosts(2), parts=joining(GROUP)))
    assert isinstance(second, Claimed) and second.choice == 1
    assert await placement_breaches(placement.database) == []


async def test_a_spread_group_has_a_limited_number_of_members_in_each_rack(placement: Placement) -> None:
    await make(placement, DomainConstraints(spread="rack", max_per_domain=2))
    together = [a_claim(number, on_hosts(1 + number % 2), parts=joining(GROUP)) for number in (1, 2)]
    assert all(isinstance(result, Claimed) for result in await take(placement, *together))
    [refused] = await take(placement, a_claim(3, on_hosts(1), parts=joining(GROUP)))
    assert refused == Refused(refusals=(violated(1, "spread rack", members=2),))
    await must_take(placement, a_claim(3, on_hosts(3), parts=joining(GROUP)))


@pytest.mark.parametrize("topology", [DomainConstraints(pack="rack"), DomainConstraints(spread="rack")])
async def test_a_host_without_a_label_is_refused(placement: Placement, topology: DomainConstraints) -> None:
    await make(placement, topology)
    [refused] = await take(placement, a_claim(1, on_hosts(5), parts=joining(GROUP)))
    assert refused == Refused(refusals=(violated(5, str(topology).partition(":")[0]),))


async def test_a_claim_makes_the_group_of_its_request_and_a_later_swap_is_judged(
    placement: Placement,
) -> None:
    """The conductor's claim of an alternate names no group, and is still checked by the group's topology."""
    topology = DomainConstraints(pack="rack")
    claims = [a_claim(n, on_hosts(n), parts=joining(GROUP, topology)) for n in (1, 2)]
    results = await take(placement, *claims)
    assert all(isinstance(result, Claimed) for result in results)
    [moved] = await take(placement, a_claim(1, on_hosts(4), generation=1))
    assert moved == Refused(refusals=(violated(4, "pack rack", "r1"),))
    await must_take(placement, a_claim(1, on_hosts(2), generation=1))
    assert (
        await placement.of(ServerGroups).find(FindGroups())
    ).groups == ()  # only operators' groups are listed
    [group] = (await placement.of(ServerGroups).find(FindGroups(members=(uid(1),)))).groups
    assert group.topology == topology


async def test_the_group_of_a_request_is_deleted_after_its_last_member(placement: Placement) -> None:
    topology = DomainConstraints(pack="rack")
    await take(placement, a_claim(1, on_hosts(1), parts=joining(GROUP, topology)))
    later = placement.clock.now() + 1
    await placement.of(ServerGroups).prune(later)
    assert (await placement.of(ServerGroups).find(FindGroups(ids=(GROUP,)))).groups
    await placement.claims.release_many([a_release(1, 1)])
    await placement.of(ServerGroups).prune(later)
    assert not (await placement.of(ServerGroups).find(FindGroups(ids=(GROUP,)))).groups


async def test_an_audit_names_members_that_a_new_label_put_apart(placement: Placement) -> None:
    await make(placement, DomainConstraints(pack="rack"))
    await take(
        placement,
        a_claim(1, on_hosts(1), parts=joining(GROUP)),
        a_claim(2, on_hosts(2), parts=joining(GROUP)),
    )
    await placement.reports.label(LabelEditRequested(roots=(uid(2, "a"),), set={"rack": "r9"}))
    [breach] = await placement_breaches(placement.database)
    assert "packed into one rack, its members are in r1, r9" in breach
    await placement.reports.label(LabelEditRequested(roots=(uid(2, "a"),), set={"rack": "r1"}))
