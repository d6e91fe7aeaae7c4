"""Rules of claims on data in memory: a refused claim leaves no trace of what its rules have done before."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import pytest
from msgspec.structs import replace

from berth.kit import Settings
from berth.kit.testing import open_placement
from bus.claims import Choice, ClaimRequested, ConsumerClaim, Refused, ReleaseRequested
from bus.clock import Clock
from bus.parts import ClaimParts
from bus.requests import Flavor
from bus.sql.database import Database
from bus.vocabulary import Allocations
from features.group_limits.rule import GroupLimitRule
from features.groups.constraints import DomainConstraints
from features.groups.places import GroupPlaces
from features.groups.rule import GROUP, GroupRule, GroupWorld
from features.groups.tests.support.group_parts import joining
from features.groups.topology_rule import TopologyRule
from features.preemption.messages import Preempts, Victim
from features.preemption.rule import PreemptionRule, PreemptionWorld
from features.quotas.budgets import ProjectBudget
from features.quotas.rule import QuotaRule, QuotaWorld
from features.reservations.messages import Reservation, choice_from
from features.reservations.rule import ReservationRule
from features.reservations.slots import ReservationWorld, SlotRecord
from placement_worker.extension import ClaimWorld, Holder
from placement_worker.testing import LOCKS, claim, release
from tests.support.claim_worlds import A, B, C, room, stock
from tests.support.ids import uid

# Another rule has its tests in the folder of its feature (docs/howto/claim-rule.md).
JUDGING = (ReservationRule, PreemptionRule, GroupRule, TopologyRule, QuotaRule, GroupLimitRule)
RULES = [
    rule
    for rule in open_placement(Settings(), Database("sqlite+aiosqlite://"), Clock()).claims.rules
    if isinstance(rule, JUDGING)
]
X, Y, VICTIM, SLOT, DRAWER = (uid(number) for number in range(1, 6))
KEEP, REST, MOVE = uid(6), uid(7), uid(8)
PROJECT = "p1"
SEASON = Reservation(id=uid(9), name="season", project=PROJECT, flavor=Flavor(name="m"))
MEMBERS = GroupPlaces(7, "group", "web", PROJECT, "anti-affinity", 1)
RACKED = GroupPlaces(8, "racked", "db", PROJECT, "topology", 1, DomainConstraints(spread="rack"))
HELD: Mapping[str, Allocations] = {
    X: {A: {"VCPU": 2}},
    VICTIM: {B: {"VCPU": 8}},
    SLOT: {C: {"VCPU": 4}},
    DRAWER: {C: {"VCPU": 2}},
}


def on(*providers: str, vcpus: int = 2) -> Allocations:
    return {provider: {"VCPU": vcpus} for provider in providers}


def a_world() -> ClaimWorld:
    """All rules and three hosts: X is a member of a group, B is full, C has a slot from which DRAWER drew."""
    there = ClaimWorld({each: room(each, VCPU=stock(8)) for each in (A, B, C)}, {}, {}, now=1.0)
    there.holders = {name: Holder(name, number) for number, name in enumerate((Y, KEEP, REST, MOVE), 10)}
    for number, (name, held) in enumerate(HELD.items(), 20):
        there.holders[name] = Holder(name, number, 1, held, project_id=1)
        there.count(held, +1)
    groups = deepcopy([MEMBERS, RACKED])
    for group, member in zip(groups, (X, "another"), strict=True):
        group.put(member, frozenset({A}))
        group.labels = {A: {"rack": "r1"}, B: {"rack": "r1"}, C: {"rack": "r2"}}
    there.holders[X].marks[GROUP] = 7
    there.holders[DRAWER].marks["draws_on"] = SLOT
    budget = ProjectBudget(PROJECT, {"VCPU": 100})
    slots = {SLOT: SlotRecord(SLOT, SEASON.id, PROJECT, on(C, vcpus=6))}
    there.rules, there.protected = RULES, {"draws_on": "it draws", GROUP: "it is in a group"}
    there.state = {
        ReservationRule: ReservationWorld(1.0, {SEASON.id: SEASON}, slots, slots),
        PreemptionRule: PreemptionWorld({}),
        GroupRule: GroupWorld({each.id: each for each in groups}, {each.uuid: each.id for each in groups}),
        TopologyRule: groups,
        QuotaRule: QuotaWorld({PROJECT: budget}, {1: PROJECT}),
        GroupLimitRule: {PROJECT: 5},
    }
    return there


def data_of(there: ClaimWorld) -> Any:
    """Return a copy of everything that a claim may change."""
    fields = (name for name in ClaimWorld.__slots__ if name not in ("rules", "journal"))
    return deepcopy({name: getattr(there, name) for name in fields})


def wants(consumer: str, *choices: Choice | Allocations, **more: Any) -> ConsumerClaim:
    made = tuple(each if isinstance(each, Choice) else Choice(each) for each in choices)
    claimed = ConsumerClaim(consumer=consumer, generation=None, choices=made, project=PROJECT)
    return replace(claimed, **more)


def preempts() -> Preempts:
    victim = Victim(build=VICTIM, generation=1, attempt=1, holder=REST)
    return Preempts(victims=(victim,), cell="c1", priority=5)


CLAIMS: dict[str, Callable[[], ConsumerClaim]] = {
    "draws from a slot": lambda: wants(Y, choice_from(SLOT, on(C))),
    "preempts": lambda: wants(Y, on(B), parts=ClaimParts(preempts())),
    "joins a group": lambda: wants(Y, on(C), parts=joining("group")),
    "joins a group with a topology": lambda: wants(Y, on(C), parts=joining("racked")),
    "moves in its group": lambda: wants(X, on(C), generation=1, keep=KEEP, begins=MOVE),
    "joins another group": lambda: wants(X, on(C), generation=1, parts=joining("racked")),
    "leaves": lambda: wants(X, {}, generation=1),
    "moves what it drew": lambda: wants(DRAWER, on(A), generation=1, keep=KEEP, begins=MOVE),
    "moves by two consumers": lambda: wants(X, on(A, C), generation=1, client=True),
    "takes over": lambda: wants(Y, {}, take_over=DRAWER),
}


@pytest.mark.parametrize("make", CLAIMS.values(), ids=CLAIMS)
def test_a_claim_leaves_no_trace_if_another_of_its_request_is_refused(
    make: Callable[[], ConsumerClaim],
) -> None:
    there, first = a_world(), make()
    before = data_of(there)
    other = uid(99)
    there.holders[other] = Holder(other, 99)
    before["holders"][other] = Holder(other, 99)
    results = claim(ClaimRequested(claims=(first, wants(other, on(A, vcpus=50)))), there)
    assert results is not None and [type(result) for result in results] == [Refused, Refused]
    first_result, second_result = results
    assert isinstance(first_result, Refused) and first_result.refusals == ()  # it was possible
    assert isinstance(second_result, Refused) and second_result.refusals
    assert data_of(there) == before


REFUSED_LATER: dict[str, tuple[Choice, dict[str, Any]]] = {
    "draws, and breaks the policy of its group": (choice_from(SLOT, on(C)), {"parts": joining("group")}),
    "preempts, and breaks the topology of its group": (
        Choice(on(B)),
        {"parts": joining("racked").having(preempts())},
    ),
    "preempts too little": (Choice(on(B, vcpus=9)), {"parts": ClaimParts(preempts())}),
    "draws from another slot than it fits": (choice_from(SLOT, on(C, vcpus=9)), {}),
}


@pytest.mark.parametrize(("choice", "more"), REFUSED_LATER.values(), ids=REFUSED_LATER)
def test_a_refused_choice_leaves_no_trace(choice: Choice, more: dict[str, Any]) -> None:
    there = a_world()
    state: GroupWorld = there.state[GroupRule]
    state.groups[7].put(VICTIM, frozenset({C}))
    before = data_of(there)
    [result] = claim(ClaimRequested(claims=(wants(Y, choice, **more),)), there) or ()
    assert isinstance(result, Refused) and len(result.refusals) == 1
    assert data_of(there) == before


@pytest.mark.parametrize("make", CLAIMS.values(), ids=CLAIMS)
def test_a_claim_that_needs_more_data_leaves_no_trace(make: Callable[[], ConsumerClaim]) -> None:
    there = a_world()
    before = data_of(there)
    other = uid(99)
    there.holders[other] = before["holders"][other] = Holder(other, 99)
    unread = wants(other, {"unread": {"VCPU": 1}})
    assert claim(ClaimRequested(claims=(make(), unread)), there) is None
    assert data_of(there) == before


def test_a_released_amount_returns_to_its_slot() -> None:
    there = a_world()
    assert release(ReleaseRequested(consumer=DRAWER, generation=1), there) is not None
    assert there.holders[SLOT].held == on(C, vcpus=6)


def test_the_order_of_judgement_and_of_locks() -> None:
    names = [rule.name for rule in RULES]
    assert names == ["reservations", "preemption", "groups", "topology", "quotas", "group_limits"]
    assert LOCKS == ("consumers", "projects", "reservations", "groups", "providers", "change number")
    assert {rule.locks for rule in RULES} <= {"", *LOCKS}


BREAKS_ALL = ["reservation", "not_preemptible", "", "server_group", "quota"]


def test_a_claim_is_refused_by_the_first_rule_that_it_breaks() -> None:
    """Each step mends the first reason; capacity is judged between preemption and the groups."""
    there = a_world()
    there.state[QuotaRule] = QuotaWorld({PROJECT: ProjectBudget(PROJECT, {"VCPU": 1})}, {1: PROJECT})
    wrong = replace(preempts(), victims=(Victim(build=X, generation=9, attempt=1, holder=REST),))
    steps = (
        wants(Y, choice_from(VICTIM, on(A, vcpus=9)), parts=joining("group").having(wrong)),
        wants(Y, on(A, vcpus=9), parts=joining("group").having(wrong)),
        wants(Y, on(A, vcpus=9), parts=joining("group")),
        wants(Y, on(A), parts=joining("group")),
        wants(Y, on(C), parts=joining("group")),
    )
    codes = []
    for step in steps:
        [result] = claim(ClaimRequested(claims=(step,)), there) or ()
        assert isinstance(result, Refused)
        codes.append(getattr(result.refusals[0], "code", ""))
    assert codes == BREAKS_ALL
