"""The events of a past period, from commits of placement and from records; and what remains unknown."""

from collections import Counter

import pytest
from msgspec import structs

from bus.decisions import Decision
from bus.errors import OperationRefused
from bus.messages import BuildRequested
from bus.parts import RequestPart, RequestParts
from bus.queries import DecisionFound
from bus.replication import ConsumerChange, ProviderChange
from bus.requests import Flavor, ResourceGroup
from bus.vocabulary import Allocations
from features.history.messages import LoggedCommit, SnapshotPart
from features.history.past import PastCloud
from features.quality_replay.period import HostChange, RecordedArrival, RecordedEnd
from features.quality_replay.reading import UNKNOWN, Appeared, KnownRequests, RecordedChanges, Unplaced
from placement_worker.extension import Tree, packed
from tests.support.ids import uid
from tests.support.provider_trees import state, tree

SMALL = Flavor(name="small", vcpus=1, memory_mb=1024)
ROOT, GPU = uid(1, "a"), uid(2, "a")
ONE: Allocations = {ROOT: {"VCPU": 1, "MEMORY_MB": 1024}}
TWO: Allocations = {ROOT: {"VCPU": 2, "MEMORY_MB": 2048}}
ELSEWHERE: Allocations = {uid(3, "a"): {"VCPU": 1, "MEMORY_MB": 1024}}
ITS, OTHER = uid(1, "b"), uid(2, "b")


def changes_of(*consumers: ConsumerChange) -> RecordedChanges:
    """Return the changes of a cloud of two hosts, the first with a GPU, that holds these consumers."""
    cloud = PastCloud(40, 90.0)
    hosts = [
        tree(
            state(1, inventories={"VCPU": 8, "MEMORY_MB": 8192}),
            state(2, parent=1, inventories={"CUSTOM_GPU": 1}),
        ),
        tree(state(3, inventories={"VCPU": 8, "MEMORY_MB": 8192})),
    ]
    cloud.load(SnapshotPart(trees=packed(hosts), consumers=consumers))
    return RecordedChanges(cloud, 100.0)


def holds(allocations: Allocations, consumer: str = ITS, type_: str = "INSTANCE") -> ConsumerChange:
    return ConsumerChange(consumer, 1, allocations, uid(0), type_)


def commit(number: int, *consumers: ConsumerChange, at: float = 0.0, **more: object) -> LoggedCommit:
    return LoggedCommit(number, at or 100.0 + number, consumers=consumers, **more)  # type: ignore[arg-type]


def asking(flavor: Flavor = SMALL, *parts: object) -> BuildRequested:
    return BuildRequested(request=uid(0), instances=(ITS,), flavor=flavor, parts=RequestParts(*parts))


def test_new_and_ended_allocations_are_arrivals_and_departures() -> None:
    changes = changes_of()
    changes.apply(commit(41, holds(ONE)))
    changes.apply(commit(42, holds({})))
    appeared, departed = changes.events
    assert isinstance(appeared, Appeared) and (appeared.at, appeared.consumer) == (141.0, ITS)
    assert departed == RecordedEnd(142.0, ITS)
    assert changes.in_use.outcome(151.0, 1, 0).mean_hosts == 1 / 51


def test_a_consumer_that_ends_leaves_before_another_one_of_its_commit_arrives() -> None:
    changes = changes_of(holds(ONE))
    changes.apply(commit(41, holds(ONE, OTHER), holds({})))
    assert [type(event) for event in changes.events] == [RecordedEnd, Appeared]


def test_a_resize_is_an_arrival_and_a_move_is_only_counted() -> None:
    changes = changes_of(holds(ONE))
    changes.apply(commit(41, holds(TWO)))
    assert [type(event) for event in changes.events] == [Appeared]
    moved = changes_of(holds(ONE))
    source = holds(ONE, OTHER, "MIGRATION")  # of the move, until it is confirmed
    moved.apply(commit(41, holds(ELSEWHERE), source))
    assert not moved.events and moved.unknown["moves"] == 1
    assert moved.in_use.most == 2


def test_changes_of_hosts_are_events_and_deleted_hosts_are_counted() -> None:
    changes = changes_of()
    changes.apply(commit(41, trees=packed([Tree(uid(3, "a"))])))
    [event] = changes.events
    assert isinstance(event, HostChange) and not event.trees[uid(3, "a")].providers
    assert changes.unknown["deleted_hosts"] == 1
    assert changes.in_use.outcome(200.0, 0, 0).hosts == 1


def test_a_missing_commit_and_a_renamed_class_are_refused() -> None:
    with pytest.raises(OperationRefused, match="the changes 41 to 41 are not stored"):
        changes_of().apply(commit(42, holds(ONE)))
    with pytest.raises(OperationRefused, match="CUSTOM_GPU was renamed"):
        changes_of().apply(commit(41, renamed=("CUSTOM_GPU", "CUSTOM_CARD")))


def test_the_state_of_the_begin_remains() -> None:
    changes = changes_of(holds(ONE))
    changes.apply(
        commit(41, holds({}), changes=(ProviderChange(ROOT, ROOT, 2, {"VCPU": 0, "MEMORY_MB": 0}),))
    )
    assert changes.cloud.consumers.keys() == {ITS} and not changes.now.consumers


def test_a_request_without_a_record_is_made_of_its_amounts() -> None:
    changes = changes_of()
    changes.apply(commit(41, holds({**ONE, GPU: {"CUSTOM_GPU": 1}})))
    [event] = changes.events
    assert isinstance(event, Appeared)
    unknown = Counter[str]()
    request = KnownRequests((), unknown).of(event, None)
    assert (request.flavor.vcpus, request.flavor.memory_mb, request.flavor.disk_gb) == (1, 1024, 0)
    assert request.groups == (ResourceGroup(suffix="_0", resources={"CUSTOM_GPU": 1}),)
    assert request.flavor.name == "CUSTOM_GPU:1,MEMORY_MB:1024,VCPU:1"
    assert unknown == {"no_record": 1}


def appeared(allocations: Allocations = ONE, is_instance: bool = True) -> Appeared:
    return Appeared(0.0, ITS, allocations, asking(structs.replace(SMALL, name="by amounts")), is_instance)


class OtherPart(RequestPart, frozen=True, kw_only=True):
    """A condition that a replay cannot repeat."""

    host: str = ""


@pytest.mark.parametrize(
    ("event", "record", "flavor", "unknown"),
    [
        (appeared(), asking(), "small", {}),
        (appeared(), None, "by amounts", {"no_record": 1}),
        (appeared(is_instance=False), None, "by amounts", {"holders": 1}),
        (appeared(TWO), asking(), "by amounts", {"other_amounts": 1}),
        (appeared(), asking(SMALL, OtherPart(host="h1")), "small", {"conditions": 1}),
    ],
)
def test_what_a_replay_leaves_out_of_a_request_is_counted(
    event: Appeared, record: BuildRequested | None, flavor: str, unknown: dict[str, int]
) -> None:
    counted = Counter[str]()
    request = KnownRequests((), counted).of(event, record)
    assert request.flavor.name == flavor
    assert +counted == unknown and unknown.keys() <= UNKNOWN.keys()


def test_equal_requests_are_one_object() -> None:
    requests = KnownRequests((), Counter())
    assert requests.plain(asking()) is requests.plain(structs.replace(asking(), request=uid(8)))
    assert requests.plain(asking()) is not requests.plain(asking(structs.replace(SMALL, vcpus=2)))


def decided(code: str, *, waits: bool = False) -> DecisionFound:
    return DecisionFound(known=True, request=asking(), decision=Decision(code=code), waits=waits)


@pytest.mark.parametrize(
    ("decision", "unknown"),
    [
        (decided("class"), {}),
        (decided("waited"), {}),
        (decided("line", waits=True), {}),
        (decided("quota"), {"other_reasons": 1}),
        (decided("down"), {"other_reasons": 1}),
        (decided("quota", waits=True), {"other_reasons": 1}),
        (DecisionFound(), {"no_request": 1}),
    ],
)
def test_only_requests_without_a_host_for_lack_of_one_are_replayed(
    decision: DecisionFound, unknown: dict[str, int]
) -> None:
    counted = Counter[str]()
    arrivals = KnownRequests((), counted).unplaced([Unplaced(5.0, (OTHER,), decision)])
    assert +counted == unknown and unknown.keys() <= UNKNOWN.keys()
    assert [(each.at, each.consumers, each.is_refused) for each in arrivals] == (
        [] if unknown else [(5.0, (OTHER,), True)]
    )


def test_the_rest_of_a_request_takes_as_many_hosts_as_there_are() -> None:
    def arrival_of(*without_host: str) -> RecordedArrival:
        request = structs.replace(asking(), instances=(ITS, OTHER))
        found = DecisionFound(known=True, request=request, decision=Decision(code="class"))
        [arrival] = KnownRequests((), Counter()).unplaced([Unplaced(5.0, without_host, found)])
        return arrival

    assert arrival_of(ITS, OTHER).request.at_least == 0  # all or none
    assert arrival_of(OTHER).request.at_least == 1
