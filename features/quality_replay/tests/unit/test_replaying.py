"""Replays of small histories: which requests get a host with a profile, and how many hosts are in use."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf

import pytest
from msgspec import structs

from berth.choice import policy
from berth.settings import Settings
from bus.host_health import DISABLED
from bus.messages import BuildRequested
from bus.parts import RequestParts
from bus.replication import ConsumerChange
from bus.requests import Flavor, Hints
from features.groups.messages import GroupPart, ServerGroup
from features.history.messages import SnapshotPart
from features.history.past import PastCloud
from features.quality_replay.period import (
    Event,
    HostChange,
    PeriodOutcome,
    RecordedArrival,
    RecordedEnd,
    RecordedPeriod,
    usual_lives,
)
from features.quality_replay.replaying import QualityReplay
from placement_worker.extension import Tree, packed
from tests.support.ids import uid
from tests.support.provider_trees import state, tree

HALF = Flavor(name="half", vcpus=4, memory_mb=4096)  # of a host
WHOLE = Flavor(name="whole", vcpus=8, memory_mb=8192)
GROUP = ServerGroup(id=uid(1, "d"), name="apart", policy="anti-affinity", project=uid(0))


def a_host(number: int, *traits: str, used: Flavor | None = None) -> Tree:
    amounts = {} if used is None else amounts_of(used)
    return tree(
        state(number, inventories={"VCPU": 8, "MEMORY_MB": 8192}, used=amounts, traits=traits, shape=0)
    )


def amounts_of(flavor: Flavor) -> dict[str, int]:
    return {"VCPU": flavor.vcpus, "MEMORY_MB": flavor.memory_mb}


def the_root(number: int) -> str:
    return uid(number, "a")


def instance(number: int) -> str:
    return uid(number, "b")


def asking(flavor: Flavor, *, joins: ServerGroup | None = None, **fields: object) -> BuildRequested:
    parts = RequestParts() if joins is None else RequestParts(GroupPart(group=joins.id))
    request = BuildRequested(
        request=uid(0), instances=(uid(0),), flavor=flavor, project=uid(0), alternates=0, parts=parts
    )
    return structs.replace(request, **fields)


def arrives(
    at: float, number: int, flavor: Flavor, *, refused: bool = False, **fields: object
) -> RecordedArrival:
    return RecordedArrival(at, (instance(number),), asking(flavor, **fields), refused)  # type: ignore[arg-type]


def a_period(
    *events: Event,
    hosts: int = 2,
    existing: Mapping[int, tuple[int, Flavor]] = {},
    demand: Sequence[Flavor] = (),
    end: float = 100.0,
    groups: Sequence[ServerGroup] = (),
) -> RecordedPeriod:
    """Return a period from 0 with equal hosts. `existing`: instance → its host and flavor. `demand`: the
    flavors of requests before the period.
    """
    cloud, used = PastCloud(0, 0.0), dict(existing.values())
    consumers = [
        ConsumerChange(instance(number), 1, {the_root(host): amounts_of(flavor)}, uid(0), "INSTANCE")
        for number, (host, flavor) in existing.items()
    ]
    trees = [a_host(number, used=used.get(number)) for number in range(hosts)]
    cloud.load(SnapshotPart(trees=packed(trees), consumers=tuple(consumers)))
    return RecordedPeriod(
        begin=0.0,
        end=end,
        cloud=cloud,
        events=events,
        earlier={instance(900 + number): asking(flavor) for number, flavor in enumerate(demand)},
        groups={group.id: group for group in groups},
    )


def replayed(period: RecordedPeriod, profile: str = "spread") -> PeriodOutcome:
    settings = Settings().having(placement_profile=profile)
    return asyncio.run(QualityReplay(period, policy(settings), settings).run())


def test_more_requests_get_a_host_with_pack_than_with_spread() -> None:
    events: list[Event] = [arrives(10, 1, HALF), arrives(20, 2, HALF), arrives(30, 3, WHOLE)]
    spread, pack = (
        replayed(a_period(*events, demand=(HALF, WHOLE)), profile) for profile in ("spread", "pack")
    )
    assert (spread.requested, spread.refused, spread.lost) == (3, 1, 1)
    assert (pack.requested, pack.refused, pack.lost) == (3, 0, 0)


def test_pack_uses_fewer_hosts_than_spread() -> None:
    events: list[Event] = [arrives(20, 1, HALF), arrives(60, 2, HALF)]
    spread, pack = (
        replayed(a_period(*events, demand=(HALF, WHOLE)), profile) for profile in ("spread", "pack")
    )
    assert (spread.mean_hosts, spread.most_hosts, spread.empty_hosts) == (1.2, 2, 0)
    assert (pack.mean_hosts, pack.most_hosts, pack.empty_hosts) == (0.8, 1, 1)


def test_instances_of_the_begin_keep_their_hosts_until_their_recorded_end() -> None:
    existing = {1: (0, WHOLE), 2: (1, HALF)}
    early: list[Event] = [arrives(10, 3, WHOLE), RecordedEnd(20, instance(1))]
    late: list[Event] = [RecordedEnd(20, instance(1)), arrives(30, 3, WHOLE)]
    assert replayed(a_period(*early, existing=existing)).refused == 1
    assert replayed(a_period(*late, existing=existing)).refused == 0
    outcome = replayed(a_period(RecordedEnd(20, instance(1)), existing=existing))
    assert (outcome.mean_hosts, outcome.most_hosts, outcome.empty_hosts) == (1.2, 2, 1)


def test_the_requests_of_existing_instances_are_known_as_demand() -> None:
    eighth = Flavor(name="eighth", vcpus=1, memory_mb=1024)
    events = [arrives(10, 3, eighth), arrives(20, 4, HALF), arrives(30, 5, HALF)]
    existing = {1: (0, HALF), 2: (1, eighth)}
    unknown = replayed(a_period(*events, existing=existing), "pack")
    known = replayed(a_period(*events, existing=existing, demand=(HALF, HALF, HALF)), "pack")
    assert (unknown.refused, known.refused) == (1, 0)  # the rest of host 0 is kept for an instance of a half


def test_the_end_of_a_request_without_a_host_is_ignored() -> None:
    events: list[Event] = [
        arrives(10, 1, WHOLE),
        arrives(20, 2, WHOLE),
        RecordedEnd(30, instance(2)),
        arrives(40, 3, WHOLE),
    ]
    outcome = replayed(a_period(*events, hosts=1))
    assert (outcome.refused, outcome.most_hosts) == (2, 1)


def test_a_recorded_refusal_that_fits_stays_as_long_as_the_median_of_its_flavor() -> None:
    def events(next_at: float) -> list[Event]:
        return [
            arrives(10, 1, WHOLE),
            RecordedEnd(20, instance(1)),
            arrives(30, 2, WHOLE, refused=True),
            arrives(next_at, 3, WHOLE),
        ]

    blocked, free = (
        replayed(a_period(*events(at), RecordedEnd(at + 10, instance(3)), hosts=1)) for at in (35, 45)
    )
    assert (blocked.gained, blocked.lost, blocked.refused) == (1, 1, 1)
    assert (free.gained, free.lost, free.refused) == (1, 0, 0)


def test_a_refused_request_is_decided_as_a_whole_unless_it_takes_fewer_instances() -> None:
    def asks(at_least: int) -> RecordedArrival:
        together = tuple(instance(number) for number in range(3))
        return RecordedArrival(10, together, asking(WHOLE, at_least=at_least), is_refused=True)

    outcome = replayed(a_period(asks(0)))
    assert (outcome.requested, outcome.refused, outcome.gained) == (3, 3, 0)
    outcome = replayed(a_period(asks(1)))
    assert (outcome.requested, outcome.refused, outcome.gained) == (3, 1, 2)


def test_the_median_life_is_infinite_if_most_instances_still_exist() -> None:
    events: list[Event] = [arrives(at, at, HALF) for at in (1, 2, 3)]
    lives = usual_lives(a_period(*events, RecordedEnd(9, instance(1))))
    assert lives(HALF) == inf
    lives = usual_lives(a_period(*events, RecordedEnd(9, instance(1)), RecordedEnd(9, instance(3))))
    assert lives(HALF) == 8
    assert lives(WHOLE) == 8  # no instance of this flavor is recorded: the median of all


def test_a_resized_instance_that_fits_nowhere_remains_as_it_is() -> None:
    existing = {1: (0, HALF), 2: (1, HALF)}
    grows = arrives(10, 1, WHOLE)
    outcome = replayed(a_period(grows, existing=existing))
    assert (outcome.requested, outcome.refused, outcome.empty_hosts) == (1, 0, 0)
    grows_too_much = replace(grows, request=asking(structs.replace(HALF, vcpus=9)))
    outcome = replayed(a_period(grows_too_much, arrives(20, 3, WHOLE), existing=existing))
    assert (outcome.refused, outcome.empty_hosts) == (2, 0)


def test_a_deleted_host_keeps_its_instances_and_gets_no_more() -> None:
    gone = HostChange(20, {the_root(0): Tree(the_root(0))})
    outcome = replayed(a_period(arrives(10, 1, HALF), gone, arrives(30, 2, HALF), hosts=1))
    assert (outcome.refused, outcome.hosts, outcome.empty_hosts) == (1, 1, 0)
    outcome = replayed(a_period(arrives(10, 1, HALF), gone, RecordedEnd(30, instance(1)), hosts=1))
    assert (outcome.most_hosts, outcome.hosts) == (1, 0)


def test_new_and_disabled_hosts_count_from_their_time_on() -> None:
    more = HostChange(20, {the_root(1): a_host(1)})
    less = HostChange(40, {the_root(1): a_host(1, DISABLED)})
    events: list[Event] = [arrives(10, 1, WHOLE), arrives(15, 2, WHOLE), more, arrives(30, 3, HALF), less]
    outcome = replayed(a_period(*events, arrives(50, 4, HALF), hosts=1))
    assert (outcome.refused, outcome.hosts, outcome.most_hosts) == (2, 2, 2)
    # the change that disabled the host did not release what the replay has placed there
    outcome = replayed(
        a_period(*events, HostChange(45, {the_root(1): a_host(1)}), arrives(50, 4, WHOLE), hosts=1)
    )
    assert outcome.refused == 2


def test_members_of_a_server_group_are_apart_where_the_replay_has_placed_them() -> None:
    events: list[Event] = [arrives(at, at, HALF, joins=GROUP) for at in (10, 20, 30)]
    outcome = replayed(a_period(*events, groups=(GROUP,), demand=(HALF, WHOLE)), "pack")
    assert (outcome.refused, outcome.most_hosts) == (1, 2)
    ended = RecordedEnd(25, instance(10))
    assert replayed(a_period(*events, ended, groups=(GROUP,))).refused == 1
    assert replayed(a_period(*events[:2], ended, events[2], groups=(GROUP,))).refused == 0


def test_a_request_avoids_the_host_that_the_replay_gave_another_instance() -> None:
    elsewhere = arrives(20, 2, HALF, hints=Hints(different_host=(instance(1),)))
    outcome = replayed(a_period(arrives(10, 1, HALF), elsewhere, demand=(HALF, WHOLE)), "pack")
    assert (outcome.refused, outcome.most_hosts) == (0, 2)


def test_a_rule_about_the_number_of_instances_sees_those_of_the_replay() -> None:
    settings = Settings().having(
        placement_profile="pack",
        scheduler_filters=("+num_instances",),
        scheduler_rules={"num_instances": {"max_instances_per_host": 1}},
    )
    events: list[Event] = [
        arrives(10, 1, HALF),
        arrives(20, 2, HALF),
        RecordedEnd(30, instance(1)),
        arrives(40, 3, HALF),
    ]
    period = a_period(*events, existing={9: (1, HALF)}, demand=(HALF, WHOLE))
    outcome = asyncio.run(QualityReplay(period, policy(settings), settings).run())
    assert (outcome.refused, outcome.most_hosts) == (1, 2)


def test_what_still_fits_at_the_end_is_counted_for_the_usual_flavors() -> None:
    events: list[Event] = [
        arrives(10, 1, HALF),
        arrives(20, 2, HALF),
        arrives(30, 3, WHOLE),
        RecordedEnd(40, instance(3)),
    ]
    spread, pack = (
        replayed(a_period(*events, hosts=3, demand=(HALF, WHOLE)), profile) for profile in ("spread", "pack")
    )
    assert spread.fits == {"half": 4, "whole": 1}
    assert pack.fits == {"half": 4, "whole": 2}


@pytest.mark.parametrize("profile", ["spread", "balanced", "pack"])
def test_replays_of_one_period_are_equal(profile: str) -> None:
    period = a_period(*(arrives(at, at, HALF) for at in range(10, 20)), hosts=4)
    assert replayed(period, profile) == replayed(period, profile)
