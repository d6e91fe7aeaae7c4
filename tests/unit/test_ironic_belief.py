"""The known state of a node after notifications and reads: the table of `core/known_state.py`."""

from typing import Any

import pytest
from msgspec.structs import replace

from ironic_sync.core.known_state import KnownStateRules
from ironic_sync.core.known_states import KnownStates
from ironic_sync.core.node import Phase, ReceivedNotification
from ironic_sync.core.rule import Invalid
from tests.support.ids import uid
from tests.support.ironic_builders import FREE, NODE, PLACE, T, closed, opened

# Opening is confirmed, closing is not


@pytest.mark.parametrize(
    ("event", "phase"),
    [("provision_set", "end"), ("provision_set", "success"), ("power_state_corrected", "success"),
     ("maintenance_set", "end"), ("update", "end"), ("power_set", "end"), ("console_set", "end")],
)  # fmt: skip
def test_opening_a_node_is_confirmed_by_a_read(event: str, phase: Phase) -> None:
    case = closed(can_read=True)
    step = case.handle(event, phase, T + 2.5, updated_at=T + 2)
    assert (step.outcome, step.read, step.report) == ("read", True, None)
    assert case.read(T + 2.6).outcome == "reported" and case.open


# The end of an API call is a snapshot


@pytest.mark.parametrize("updated_at", [T - 3, T])
def test_a_change_of_traits_that_ends_with_an_older_state_does_not_close_the_node_again(
    updated_at: float,
) -> None:
    """Step 124: the traits were put while it was cleaned, and the call ended after it was available."""
    case = opened(can_read=False)
    changes = dict[str, Any](updated_at=updated_at, provision_state="cleaning", traits=("CUSTOM_Y",))
    case.handle("update", "end", T + 0.6, **changes)
    assert case.open
    assert case.reported is not None and case.reported.providers[0].traits == ("CUSTOM_Y",)
    case = opened(can_read=True)
    assert case.handle("update", "end", T + 0.6, **changes).read
    assert case.open


# What cannot be


@pytest.mark.parametrize("changes", [{"resource_class": ""}, {"traits": ("no trait",)}])
def test_invalid_notifications_change_nothing(changes: dict[str, Any]) -> None:
    case = opened(can_read=False)
    before = case.beliefs.of(NODE)
    with pytest.raises(Invalid):
        case.handle("provision_set", "start", T + 1, **changes)
    assert case.beliefs.of(NODE) is before


def test_a_future_event_time_is_limited_to_now() -> None:
    beliefs = KnownStates(KnownStateRules(place=lambda node: PLACE))
    reply = ReceivedNotification(event="provision_set", phase="end", at=T + 1e9, uuid=NODE, node=FREE)
    step = beliefs.handle(reply, latest=T)
    assert step.report is not None and step.report.sequence == T * 1e6


def test_only_so_many_nodes_are_remembered() -> None:
    beliefs = KnownStates(KnownStateRules(place=lambda node: PLACE), most=3)
    for number in range(5):
        uuid = uid(number, "c")
        node = replace(FREE, uuid=uuid)
        beliefs.handle(
            ReceivedNotification(event="provision_set", phase="end", at=T, uuid=uuid, node=node), latest=T
        )
    assert [beliefs.of(uid(number, "c")).node is not None for number in range(5)] == [False] * 2 + [True] * 3
