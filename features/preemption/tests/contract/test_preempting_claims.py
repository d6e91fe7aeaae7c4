"""Claims that preempt instances, on both databases: all in one transaction, or nothing."""

import pytest

from berth.kit.testing import placement_breaches
from bus.claims import CLEANUP, Claimed, Refused, Released, Retired, RuleRefused
from bus.parts import ClaimParts
from bus.resources import FindAllocations
from features.preemption.messages import FindPreemptions, Victim
from features.preemption.operations import PreemptionRecords
from features.preemption.rule import VICTIMS
from features.preemption.tests.support.preempting_claims import (
    HIGH,
    HOLDER,
    HOLDER2,
    LOW,
    LOWER,
    a_victim,
    take,
    taking,
)
from features.preemption.tests.support.preempting_claims import full_host as full_host
from placement_worker.testing import Placement
from tests.support.ids import uid
from tests.support.placement_builders import a_release, keeps_its_index


async def held(placement: Placement) -> dict[str, tuple[int, str | None]]:
    """Return how many processors of host 1 each consumer holds, with its type."""
    found = await placement.lookups.allocations(FindAllocations(providers=(uid(1, "a"),)))
    amounts = {each.id: each.allocations[uid(1, "a")]["VCPU"] for each in found.consumers}
    return {each.id: (amounts[each.id], each.type) for each in found.consumers}


async def is_sound(placement: Placement) -> bool:
    await keeps_its_index(placement)
    return not await placement_breaches(placement.database)


async def test_the_claim_takes_missing_resources_and_a_holder_keeps_the_rest(placement: Placement) -> None:
    assert isinstance(await take(placement, HIGH, 4, parts=ClaimParts(taking(a_victim()))), Claimed)
    assert await held(placement) == {
        uid(HIGH): (4, "INSTANCE"), uid(LOWER): (2, "INSTANCE"), uid(HOLDER): (2, CLEANUP)
    }  # fmt: skip
    [found] = (await placement.of(PreemptionRecords).find(FindPreemptions(victims=(uid(LOW),)))).preemptions
    assert (found.by, found.priority, found.project, found.victim) == (uid(HIGH), 7, "p1", a_victim())
    assert (await placement.of(PreemptionRecords).find(FindPreemptions(by=(uid(HIGH),)))).preemptions == (
        found,
    )
    assert await is_sound(placement)


async def test_the_latest_preemptions_are_found_with_the_use_of_budgets(placement: Placement) -> None:
    counted = VICTIMS.labels(0)._value.get()
    both = taking(a_victim(), a_victim(LOWER, HOLDER2))
    await take(placement, HIGH, 8, parts=ClaimParts(both))
    for latest in (1, 2):
        found = await placement.of(PreemptionRecords).find(FindPreemptions(latest=latest))
        assert len(found.preemptions) == latest and found.used == {"p1": 2}
    for project, used in (("p1", {"p1": 2}), ("p2", {}), (None, {})):
        assert (await placement.of(PreemptionRecords).find(FindPreemptions(project=project))).used == used
    assert VICTIMS.labels(0)._value.get() - counted == 2


async def test_a_victim_can_never_claim_again(placement: Placement) -> None:
    await take(placement, HIGH, 4, parts=ClaimParts(taking(a_victim())))
    assert isinstance(await take(placement, LOW, 1), Retired)
    [answer] = await placement.claims.release_many([a_release(LOW, 1, "deleted")])
    assert isinstance(answer.result, Retired)
    [answer] = await placement.claims.release_many([a_release(HOLDER, "any")])
    assert isinstance(answer.result, Released) and uid(HOLDER) not in await held(placement)


@pytest.mark.parametrize(
    ("vcpus", "victims", "why"),
    [
        (4, (a_victim(generation=2),), "what it holds has changed"),
        (4, (a_victim(7),), "what it holds has changed"),
        (4, (a_victim(), a_victim(LOWER, HOLDER2, 3)), "what it holds has changed"),
    ],
)
async def test_nothing_changes_if_a_victim_has_changed(
    placement: Placement, vcpus: int, victims: tuple[Victim, ...], why: str
) -> None:
    before = await held(placement)
    refused = await take(placement, HIGH, vcpus, parts=ClaimParts(taking(*victims)))
    assert isinstance(refused, Refused)
    [refusal] = refused.refusals
    assert isinstance(refusal, RuleRefused) and refusal.code == "not_preemptible"
    assert refusal.why.endswith(f"cannot be preempted: {why}")
    assert await held(placement) == before
    assert not (await placement.of(PreemptionRecords).find(FindPreemptions(by=(uid(HIGH),)))).preemptions
    assert await is_sound(placement)


async def test_nothing_changes_if_the_victims_do_not_make_it_fit(placement: Placement) -> None:
    before = await held(placement)
    assert isinstance(await take(placement, HIGH, 8, parts=ClaimParts(taking(a_victim()))), Refused)
    assert await held(placement) == before
    assert isinstance(await take(placement, LOW, 6, generation=1), Claimed)  # it is not retired
