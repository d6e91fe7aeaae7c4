"""Replays of small histories: which requests get a host, and how many hosts are in use."""

from dataclasses import replace
from math import inf

import pytest
from msgspec import structs

from bus.host_health import DISABLED
from bus.requests import Hints
from features.quality_replay.commands import unknown_of
from features.quality_replay.period import Event, HostChange, RecordedArrival, RecordedEnd, usual_lives
from features.quality_replay.tests.support.small_periods import (
    HALF,
    PACKING,
    SPREAD,
    WHOLE,
    a_host,
    a_period,
    arrives,
    asking,
    instance,
    replayed,
    the_root,
)
from placement_worker.extension import Tree


def test_more_requests_get_a_host_if_hosts_are_filled() -> None:
    events: list[Event] = [arrives(10, 1, HALF), arrives(20, 2, HALF), arrives(30, 3, WHOLE)]
    spread, packed = (replayed(a_period(*events), settings) for settings in (SPREAD, PACKING))
    assert (spread.requested, spread.refused, spread.lost) == (3, 1, 1)
    assert (packed.requested, packed.refused, packed.lost) == (3, 0, 0)


def test_fewer_hosts_are_in_use_if_hosts_are_filled() -> None:
    events: list[Event] = [arrives(20, 1, HALF), arrives(60, 2, HALF)]
    spread, packed = (replayed(a_period(*events), settings) for settings in (SPREAD, PACKING))
    assert (spread.mean_hosts, spread.most_hosts, spread.empty_hosts) == (1.2, 2, 0)
    assert (packed.mean_hosts, packed.most_hosts, packed.empty_hosts) == (0.8, 1, 1)


def test_instances_of_the_begin_keep_their_hosts_until_their_recorded_end() -> None:
    existing = {1: (0, WHOLE), 2: (1, HALF)}
    early: list[Event] = [arrives(10, 3, WHOLE), RecordedEnd(20, instance(1))]
    late: list[Event] = [RecordedEnd(20, instance(1)), arrives(30, 3, WHOLE)]
    assert replayed(a_period(*early, existing=existing)).refused == 1
    assert replayed(a_period(*late, existing=existing)).refused == 0
    outcome = replayed(a_period(RecordedEnd(20, instance(1)), existing=existing))
    assert (outcome.mean_hosts, outcome.most_hosts, outcome.empty_hosts) == (1.2, 2, 1)


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


def test_a_request_avoids_the_host_that_the_replay_gave_another_instance() -> None:
    elsewhere = arrives(20, 2, HALF, hints=Hints(different_host=(instance(1),)))
    outcome = replayed(a_period(arrives(10, 1, HALF), elsewhere), PACKING)
    assert (outcome.refused, outcome.most_hosts) == (0, 2)


def test_a_rule_about_the_number_of_instances_sees_those_of_the_replay() -> None:
    settings = PACKING.having(
        scheduler_filters=("+num_instances",),
        scheduler_rules={"num_instances": {"max_instances_per_host": 1}},
    )
    events: list[Event] = [
        arrives(10, 1, HALF),
        arrives(20, 2, HALF),
        RecordedEnd(30, instance(1)),
        arrives(40, 3, HALF),
    ]
    outcome = replayed(a_period(*events, existing={9: (1, HALF)}), settings)
    assert (outcome.refused, outcome.most_hosts) == (1, 2)


def test_what_still_fits_at_the_end_is_counted_for_the_usual_flavors() -> None:
    events: list[Event] = [
        arrives(10, 1, HALF),
        arrives(20, 2, HALF),
        arrives(30, 3, WHOLE),
        RecordedEnd(40, instance(3)),
    ]
    spread, packed = (replayed(a_period(*events, hosts=3), settings) for settings in (SPREAD, PACKING))
    assert spread.fits == {"half": 4, "whole": 1}
    assert packed.fits == {"half": 4, "whole": 2}


@pytest.mark.parametrize(
    ("keep", "why"),
    [(1000.0, "this region's history began then"), (101.0, "the setting `keep` limits how long")],
)
def test_a_period_that_begins_later_than_requested_says_why(keep: float, why: str) -> None:
    period = a_period(arrives(10, 1, WHOLE))
    [note, *_] = unknown_of(period, -100.0, keep, {"spread": replayed(period, SPREAD)})
    assert note.startswith("nothing is recorded before ") and why in note
