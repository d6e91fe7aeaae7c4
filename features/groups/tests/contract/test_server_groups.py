"""Server groups on both databases: made, found, dropped, and checked in the transaction of a claim."""

import pytest

from berth.operations.audit import placement_breaches
from bus.claims import CLEANUP, Claimed, ClaimRequested, Held, Refused, ReleaseRequested, RuleRefused
from bus.vocabulary import InUse, Taken
from features.groups.messages import (
    DropGroup,
    FindGroups,
    GroupEdited,
    GroupEditRequested,
    GroupPolicy,
    GroupResult,
    MakeGroup,
    ServerGroup,
)
from features.groups.store import ServerGroups
from features.groups.tests.support.group_parts import joining
from placement_worker import Placement
from tests.support.http_placement import an_api, claim_in_json, error_of
from tests.support.ids import uid
from tests.support.placement_builders import a_claim, a_release, a_report, on_hosts
from tests.support.placement_calls import must_take, take

GROUP, OTHER = uid(1, "9"), uid(2, "9")
H1, H2, H3 = (uid(number, "a") for number in (1, 2, 3))


@pytest.fixture(autouse=True)
async def hosts(placement: Placement) -> None:
    await placement.reports.report_many([a_report(number) for number in (1, 2, 3)])


async def edit(placement: Placement, group: MakeGroup | DropGroup) -> GroupResult:
    return (await placement.of(ServerGroups).edit(GroupEditRequested(edit=group))).result


async def make(placement: Placement, policy: GroupPolicy = "anti-affinity", most: int = 1) -> None:
    order = MakeGroup(group=GROUP, name="web", policy=policy, max_per_host=most, project="p1")
    assert isinstance(await edit(placement, order), GroupEdited)


async def found(placement: Placement) -> ServerGroup:
    [group] = (await placement.of(ServerGroups).find(FindGroups(ids=(GROUP,)))).groups
    return group


async def release(placement: Placement, *orders: ReleaseRequested) -> None:
    await placement.claims.release_many(orders)


def crowded(root: str, members: int = 1, policy: GroupPolicy = "anti-affinity") -> RuleRefused:
    why = f"{root}: {policy}: {members or 'no'} members of server group {GROUP} there"
    return RuleRefused(rule="groups", code="server_group", why=why, provider=root)


# Creation, queries and deletion


async def test_creating_a_group_twice_creates_it_once(placement: Placement) -> None:
    order = MakeGroup(group=GROUP, name="web", policy="anti-affinity", max_per_host=2, project="p1")
    group = ServerGroup(id=GROUP, name="web", policy="anti-affinity", max_per_host=2, project="p1")
    assert await edit(placement, order) == GroupEdited(group=group, changed=True)
    assert await edit(placement, order) == GroupEdited(group=group)
    assert await found(placement) == group


@pytest.mark.parametrize(
    ("order", "taken"),
    [
        (
            MakeGroup(group=OTHER, name="web", policy="affinity", project="p1"),
            Taken(what="name", value="web"),
        ),
        (MakeGroup(group=GROUP, name="db", policy="affinity", project="p1"), Taken(what="id", value=GROUP)),
        (MakeGroup(group=GROUP, name="web", policy="affinity", project="p2"), Taken(what="id", value=GROUP)),
        (MakeGroup(group=OTHER, name="web", policy="affinity", project="p2"), None),
    ],
)
async def test_group_ids_are_unique_and_names_are_unique_in_a_project(
    placement: Placement, order: MakeGroup, taken: Taken | None
) -> None:
    await make(placement)
    result = await edit(placement, order)
    assert result == taken if taken else isinstance(result, GroupEdited)


async def test_groups_are_found_by_id_project_and_name_in_pages(placement: Placement) -> None:
    for number, (name, project) in enumerate((("a", "p1"), ("b", "p1"), ("a", "p2")), 1):
        order = MakeGroup(group=uid(number, "9"), name=name, policy="affinity", project=project)
        await edit(placement, order)

    async def ids(**query: object) -> list[str]:
        answer = await placement.of(ServerGroups).find(FindGroups(**query))  # type: ignore[arg-type]
        return [group.id for group in answer.groups]

    one, two, three = (uid(number, "9") for number in (1, 2, 3))
    assert await ids() == [one, two, three]
    assert await ids(project="p1") == [one, two]
    assert await ids(name="a") == [one, three]
    assert await ids(ids=(two, three), name="a") == [three]
    assert await ids(limit=2) == [one, two]
    assert await ids(after=two, limit=2) == [three]
    assert await ids(ids=(one, two, three), after=one, limit=1) == [two]


async def test_groups_are_found_by_member(placement: Placement) -> None:
    await make(placement)
    await edit(placement, MakeGroup(group=OTHER, name="db", policy="affinity", project="p1"))
    await take(placement, a_claim(1, on_hosts(1), parts=joining(GROUP)), a_claim(2, on_hosts(2)))

    async def of(*members: str, ids: tuple[str, ...] = ()) -> list[str]:
        found = await placement.of(ServerGroups).find(FindGroups(members=members, ids=ids))
        return [group.id for group in found.groups]

    assert await of(uid(1), uid(2), uid(3)) == [GROUP]
    assert await of(uid(2), uid(3)) == []
    assert await of(uid(1), ids=(OTHER,)) == []


async def test_a_group_with_members_is_dropped_only_by_force_and_they_stay(placement: Placement) -> None:
    await make(placement)
    await take(placement, a_claim(1, on_hosts(1), parts=joining(GROUP)))
    assert await edit(placement, DropGroup(group=GROUP)) == InUse(what=GROUP, members=(uid(1),))
    assert await edit(placement, DropGroup(group=GROUP, force=True)) == GroupEdited(changed=True)
    assert await edit(placement, DropGroup(group=GROUP)) == GroupEdited()
    assert (await placement.of(ServerGroups).find(FindGroups())).groups == ()
    await make(placement)
    await take(placement, a_claim(2, on_hosts(2), parts=joining(GROUP)))
    await must_take(placement, a_claim(1, on_hosts(2), generation=1))
    assert (await found(placement)).members == {uid(2): (H2,)}


async def test_a_group_without_members_can_be_dropped(placement: Placement) -> None:
    await make(placement)
    await take(placement, a_claim(1, on_hosts(1), parts=joining(GROUP)))
    await release(placement, a_release(1, 1, "deleted", keep=100))  # its guest may still be there
    assert await edit(placement, DropGroup(group=GROUP)) == GroupEdited(changed=True)


# Checked in claims


async def test_a_claim_joins_its_group_once(placement: Placement) -> None:
    await make(placement)
    claim = a_claim(1, on_hosts(1), parts=joining(GROUP))
    assert [type(result) for result in await take(placement, claim)] == [Claimed]
    assert (await found(placement)).members == {uid(1): (H1,)}
    [again] = await take(placement, claim)
    assert again == Held(generation=1, allocations=on_hosts(1), roots=(uid(1, "a"),))
    await edit(placement, DropGroup(group=GROUP, force=True))
    assert await take(placement, claim) == (again,)


async def test_a_swap_is_judged_by_the_group_that_was_joined(placement: Placement) -> None:
    await make(placement)
    await take(
        placement,
        a_claim(1, on_hosts(1), parts=joining(GROUP)),
        a_claim(2, on_hosts(2), parts=joining(GROUP)),
    )
    swap = a_claim(1, on_hosts(2), on_hosts(3), generation=1, keep=100)
    [moved] = await take(placement, swap)
    assert isinstance(moved, Claimed)
    assert (moved.choice, moved.refused) == (1, (crowded(H2),))
    there = await found(placement)
    assert there.members == {uid(1): (H3,), uid(2): (H2,)}
    assert there.left == {uid(100): (H1,)}
    [late] = await take(placement, a_claim(3, on_hosts(1), parts=joining(GROUP)))
    assert late == Refused(refusals=(crowded(H1),))
    await release(placement, a_release(100, "any"))
    await must_take(placement, a_claim(3, on_hosts(1), parts=joining(GROUP)))


async def test_released_consumers_leave_their_group(placement: Placement) -> None:
    await make(placement)
    await take(
        placement,
        a_claim(1, on_hosts(1), parts=joining(GROUP)),
        a_claim(2, on_hosts(2), parts=joining(GROUP)),
    )
    await release(placement, a_release(1, 1), a_release(2, 1, "deleted"))
    assert (await found(placement)).members == {}
    await take(placement, a_claim(3, on_hosts(1), parts=joining(GROUP)))
    await must_take(placement, a_claim(1, on_hosts(1)))
    [gone] = await take(placement, a_claim(3, {}, generation=1))  # releases all allocations
    assert isinstance(gone, Claimed)
    assert (await found(placement)).members == {}


async def test_the_api_reports_a_violated_group_policy(url: str, placement: Placement) -> None:
    await make(placement)
    await take(
        placement,
        a_claim(1, on_hosts(1), parts=joining(GROUP)),
        a_claim(2, on_hosts(2), parts=joining(GROUP)),
    )
    async with an_api(url) as api:
        body = claim_in_json((H2, {"VCPU": 1}), generation=1)
        answer = await api("PUT", f"/allocations/{uid(1)}", body)
        status, _, why = error_of(answer)
        assert status == 409 and str(crowded(H2)) in why


# Audits


@pytest.mark.parametrize(
    ("policy", "type_", "reply"),
    [
        ("anti-affinity", "INSTANCE", f"server group {GROUP} (anti-affinity): 2 on {H1}, where 1 may be"),
        ("anti-affinity", CLEANUP, f"server group {GROUP} (anti-affinity): 2 on {H1}, where 1 may be"),
        ("affinity", "INSTANCE", None),
        ("soft-anti-affinity", "INSTANCE", None),
    ],
)
async def test_an_audit_reports_broken_groups(
    placement: Placement, policy: GroupPolicy, type_: str, reply: str | None
) -> None:
    await make(placement, "soft-affinity")
    await take(
        placement,
        a_claim(1, on_hosts(1), parts=joining(GROUP)),
        a_claim(2, on_hosts(1), parts=joining(GROUP), type=type_),
    )
    assert await placement_breaches(placement.database) == []
    await _set_policy(placement, policy)
    assert await placement_breaches(placement.database) == ([reply] if reply else [])
    await _set_policy(placement, "soft-affinity")


async def _set_policy(placement: Placement, policy: GroupPolicy) -> None:
    from sqlalchemy import text

    async with placement.database.write() as tx:
        await tx.execute(text("UPDATE server_groups SET policy = :policy"), {"policy": policy})


async def test_a_cell_cannot_add_a_member_to_a_group(placement: Placement) -> None:
    await make(placement)
    await take(placement, a_claim(1, on_hosts(1)))
    joins = a_claim(1, on_hosts(2), generation=1, parts=joining(GROUP))
    [answer] = await placement.claims.claim_many([ClaimRequested(claims=(joins,))], cell="c1")
    [result] = answer.results
    assert isinstance(result, Refused)
    [refusal] = result.refusals
    assert isinstance(refusal, RuleRefused) and refusal.code == "outside_cell"
