"""Choices are reserved until visible, also for server groups."""

import pytest

from bus.groups import FindGroups, GroupPolicy, GroupsFound, ServerGroup
from bus.messages import BuildPlaced
from bus.requests import Hints
from bus.resources import AllocationsFound, FindAllocations
from bus.vocabulary import Resources
from scheduler_worker.core.choice import Joined
from scheduler_worker.pending_choices import PendingChoice, PendingChoices
from scheduler_worker.placing import Scheduler
from tests.support.ids import uid
from tests.support.plain_source import PlainSource
from tests.support.scheduler_builders import ROOM, FakePlacement, TurnedClock, a_candidate, a_request
from tests.support.schedulers import scheduler_of

ROOT = uid(1, "c")
ONE: Resources = {"VCPU": 1, "MEMORY_MB": 512}


@pytest.fixture
def source() -> PlainSource:
    return PlainSource()


def chosen(pending: PendingChoices, resources: Resources = ONE, now: float = 0) -> PendingChoice:
    return pending.enter({ROOT: resources}, "c1", ROOT, now)


def test_choices_add_up(source: PlainSource) -> None:
    pending = PendingChoices(source)
    chosen(pending)
    chosen(pending, {"VCPU": 2})
    assert source.taken(ROOT) == {"VCPU": 3, "MEMORY_MB": 512}


def test_a_failed_claim_is_given_back_once(source: PlainSource) -> None:
    pending = PendingChoices(source)
    first, second = chosen(pending), chosen(pending)
    pending.drop(first)
    pending.drop(first)
    assert source.taken(ROOT) == ONE
    assert pending.unsettled == [second]


@pytest.mark.parametrize(("seen", "left"), [(6, ONE), (7, {}), (8, {})])
def test_a_claim_is_counted_until_the_memory_has_it(
    source: PlainSource, seen: int, left: dict[str, int]
) -> None:
    pending = PendingChoices(source)
    pending.confirm(chosen(pending), 7)
    assert pending.unsettled == []
    source.seen = seen
    pending.look(0)
    assert source.taken(ROOT) == left


def test_a_claim_whose_answer_came_after_it_was_seen_is_not_counted_twice(source: PlainSource) -> None:
    pending = PendingChoices(source)
    entry = chosen(pending)
    source.seen = 9
    pending.look(0)
    assert source.taken(ROOT) == ONE
    pending.confirm(entry, 7)
    assert source.promised == []


@pytest.mark.parametrize("confirmed", [False, True])
def test_nothing_is_counted_for_ever(source: PlainSource, confirmed: bool) -> None:
    pending = PendingChoices(source, timeout=10)
    entry = chosen(pending, now=100)
    if confirmed:
        pending.confirm(entry, 7)
    pending.look(109)
    assert source.taken(ROOT) == ONE
    pending.look(110)
    assert source.promised == []
    source.seen = 7
    pending.look(111)
    assert source.promised == []


def test_numbers_that_start_over_do_not_hide_choices(source: PlainSource) -> None:
    pending = PendingChoices(source)
    source.seen = 1000
    pending.look(0)
    source.seen = 1
    pending.look(0)
    pending.confirm(chosen(pending), 2)
    assert source.taken(ROOT) == ONE


GROUP = uid(1, "9")
ASIDE = uid(999, "b")
FEW = {"VCPU": 4, "MEMORY_MB": 4096, "DISK_GB": 40}


class Groups:
    def __init__(self, placement: FakePlacement, policy: GroupPolicy) -> None:
        self.placement = placement
        self.policy = policy
        self.left: dict[str, tuple[str, ...]] = {}

    async def groups(self, question: FindGroups) -> GroupsFound:
        held = self.placement.held.items()
        members = {one: tuple(holding.allocations) for one, holding in held if one != ASIDE}
        project = a_request().project
        group = ServerGroup(
            id=GROUP, name="g", policy=self.policy, project=project, members=members, left=self.left
        )
        return GroupsFound(groups=(group,))

    async def allocations(self, question: FindAllocations) -> AllocationsFound:
        return AllocationsFound(consumers=(), generations={})

    def scheduler(self) -> Scheduler:
        placement = self.placement
        return scheduler_of(
            placement, clock=TurnedClock().clock, groups=self.groups, allocations=self.allocations
        )


async def roots(scheduler: Scheduler, number: int, instances: int = 1) -> list[str]:
    """Where the instances of one request come to be; nowhere where it has no host."""
    request = a_request(number, instances=instances, hints=Hints(group=GROUP))
    (said,) = await scheduler.place_many([request])
    assert isinstance(said, list | tuple), said
    return [one.chosen.root for one in said if isinstance(one, BuildPlaced)]


async def test_a_refused_choice_is_no_group_member() -> None:
    placement = FakePlacement.of(a_candidate(1), a_candidate(2, free=FEW))
    placement.source.lag = True
    placement.take(uid(1, "c"), ROOM)
    assert await roots(Groups(placement, "affinity").scheduler(), 1, instances=2) == [uid(2, "c")] * 2


@pytest.mark.parametrize("policy", ["affinity", "anti-affinity"])
async def test_a_released_member_is_forgotten(policy: GroupPolicy) -> None:
    """An empty group may go anywhere, also where its members were before."""
    placement = FakePlacement.of(a_candidate(1), a_candidate(2, free=FEW))
    scheduler = Groups(placement, policy).scheduler()
    (root,) = await roots(scheduler, 1)
    placement.held.clear()
    other = ({uid(1, "c"), uid(2, "c")} - {root}).pop()
    taken = root if policy == "affinity" else other
    placement.free[taken].update(VCPU=0)
    assert await roots(scheduler, 2) == [other if policy == "affinity" else root]


async def test_siblings_of_one_request_know_each_other() -> None:
    placement = FakePlacement.of(*(a_candidate(number) for number in range(4)))
    assert len(set(await roots(Groups(placement, "anti-affinity").scheduler(), 1, instances=4))) == 4


async def test_a_host_from_which_a_guest_may_not_have_gone_yet_is_not_looked_at() -> None:
    placement = FakePlacement.of(a_candidate(1), a_candidate(2, free=FEW))
    groups = Groups(placement, "anti-affinity")
    groups.left = {ASIDE: (uid(1, "c"),)}
    assert await roots(groups.scheduler(), 1) == [uid(2, "c")]


def test_members_are_remembered_while_a_batch_is_under_way_that_may_not_have_been_told() -> None:
    joined = Joined()
    first = joined.begin()
    joined.join("g", "a", "r1")
    second = joined.begin()  # asks before the claim is answered
    joined.join("g", "a", "r2")  # it was claimed elsewhere
    third = joined.begin()  # asks after it
    joined.end(first)
    assert joined.of("g") == {"a": "r2"}
    joined.end(second)
    assert joined.of("g") == {}
    joined.join("g", "b", "r1")
    joined.leave("g", "b")
    assert joined.of("g") == {}
    joined.join("g", "c", "r1")
    joined.end(third)
    assert joined.of("g") == {} == joined._places
