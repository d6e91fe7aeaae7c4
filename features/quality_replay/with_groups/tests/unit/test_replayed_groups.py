"""Server groups in replays."""

from collections import Counter

import pytest

from bus.messages import BuildRequested
from features.groups.messages import ServerGroup
from features.groups.tests.support.group_parts import in_group
from features.quality_replay.period import Event, RecordedEnd
from features.quality_replay.reading import Appeared, KnownRequests
from features.quality_replay.tests.support.small_periods import (
    HALF,
    PACKING,
    a_period,
    amounts_of,
    arrives,
    asking,
    instance,
    replayed,
    the_root,
)
from features.quality_replay.with_groups.replay_conditions import RepeatedGroups
from tests.support.ids import uid

GROUP = ServerGroup(id=uid(1, "d"), name="apart", policy="anti-affinity", project=uid(0))
KNOWN = RepeatedGroups({GROUP.id: GROUP})


def test_members_of_a_server_group_are_apart_where_the_replay_has_placed_them() -> None:
    events: list[Event] = [arrives(at, at, HALF, parts=in_group(GROUP.id)) for at in (10, 20, 30)]
    outcome = replayed(a_period(*events, conditions=(KNOWN,)), PACKING)
    assert (outcome.refused, outcome.most_hosts) == (1, 2)
    ended = RecordedEnd(25, instance(10))
    assert replayed(a_period(*events, ended, conditions=(KNOWN,))).refused == 1
    assert replayed(a_period(*events[:2], ended, events[2], conditions=(KNOWN,))).refused == 0


@pytest.mark.parametrize(("group", "unknown"), [(GROUP.id, {}), (uid(2, "d"), {"no_group": 1})])
def test_instances_of_deleted_groups_are_counted_and_replayed_without_them(
    group: str, unknown: dict[str, int]
) -> None:
    counted = Counter[str]()
    record: BuildRequested = asking(HALF, parts=in_group(group))
    appeared = Appeared(0.0, instance(1), {the_root(0): amounts_of(HALF)}, asking(HALF))
    request = KnownRequests((KNOWN,), counted).of(appeared, record)
    assert +counted == unknown and list(request.parts) == ([] if unknown else list(in_group(group)))
