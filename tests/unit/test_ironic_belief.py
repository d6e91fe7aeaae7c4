"""The known state of a node after notifications and reads: the table of `core/known_state.py`."""

from typing import Any

import pytest
from msgspec.structs import replace

from ironic_sync.core.known_state import KnownStateRules
from ironic_sync.core.known_states import KnownStates
from ironic_sync.core.node import Phase, ReceivedNotification
from ironic_sync.core.rule import Invalid
from tests.support.ids import uid
from tests.support.ironic_builders import (
    API,
    FREE,
    INSTANCE,
    NODE,
    PLACE,
    READ,
    BeliefCase,
    T,
    closed,
    opened,
    with_and_without,
)

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
    assert case.read(T + 2.6).outcome == "told" and case.open


@pytest.mark.parametrize("event", ["provision_set", "power_state_corrected", "maintenance_set", "update"])
def test_without_an_api_a_node_opens_immediately(event: str) -> None:
    case = closed(can_read=False)
    step = case.handle(event, "end", T + 2.5, updated_at=T + 2)
    assert (step.outcome, step.read) == ("told", False) and case.open


@with_and_without
@pytest.mark.parametrize(
    ("event", "phase", "changes"),
    [
        ("provision_set", "start", {"provision_state": "deploying"}),
        ("provision_set", "error", {"provision_state": "clean failed"}),
        ("provision_set", "success", {"provision_state": "manageable"}),
        ("power_state_corrected", "success", {"power_state": None, "maintenance": True}),
        ("power_set", "end", {"power_state": "error"}),
        ("maintenance_set", "end", {"maintenance": True}),
        ("update", "end", {"maintenance": True}),
        ("update", "end", {"instance_uuid": INSTANCE}),
    ],
)
@pytest.mark.parametrize("updated_at", [T, T + 1], ids=["in the same second", "later"])
def test_closing_notifications_take_effect_immediately(
    event: str, phase: Phase, changes: dict[str, Any], updated_at: float, can_read: bool
) -> None:
    case = opened(can_read=can_read)
    step = case.handle(event, phase, updated_at + 0.5, updated_at=updated_at, **changes)
    assert step.outcome == "told" and not case.open
    assert step.read == (can_read and event == "update"), "an update may be one of traits, with an old state"
    assert case.reported is not None and case.reported.sequence == int((updated_at + 0.5) * 1e6)


@with_and_without
@pytest.mark.parametrize("event", API)
@pytest.mark.parametrize("changes", [{}, {"maintenance": True}, {"instance_uuid": INSTANCE}])
def test_start_notifications_of_requests_change_nothing(
    event: str, changes: dict[str, Any], can_read: bool
) -> None:
    for case in opened(can_read=can_read), closed(can_read=can_read):
        before = case.reported
        assert case.handle(event, "start", T + 5, **changes) == (case.beliefs.of(NODE), "asked", None, False)
        refused = case.handle(event, "error", T + 6, **changes)
        assert refused.read == can_read
        assert case.reported == before


@pytest.mark.parametrize("phase", ["start", "error"])
@pytest.mark.parametrize("event", ["provision_set", "power_set", "console_set"])
def test_a_start_or_an_error_never_opens(event: str, phase: Phase) -> None:
    case = closed(can_read=False)
    assert case.handle(event, phase, T + 5, updated_at=T + 5).report is None
    case = closed(can_read=True)
    step = case.handle(event, phase, T + 5, updated_at=T + 5)
    assert step.report is None and step.read


@with_and_without
def test_a_repeated_notification_is_not_reported_again(can_read: bool) -> None:
    for case in opened(can_read=can_read), closed(can_read=can_read):
        before = case.reported
        state = "available" if case.open else "cleaning"
        step = case.handle("provision_set", "end", T, updated_at=T, provision_state=state)
        assert (step.report, step.read) == (None, False)
        assert case.reported == before


def test_late_messages_change_nothing() -> None:
    case = opened(can_read=False)
    step = case.handle("provision_set", "start", T - 1, provision_state="cleaning")
    assert (step.outcome, step.report, step.read) == ("late", None, False)
    case = closed(can_read=False)
    assert case.handle("provision_set", "end", T - 1, updated_at=T - 1).outcome == "late"
    assert case.handle("delete", "end", T - 1).outcome == "late"
    assert not case.open


@pytest.mark.parametrize(("updated_at", "read"), [(T, True), (T - 1, False)])
def test_a_late_contradiction_within_a_second_leads_to_a_read(updated_at: float, read: bool) -> None:
    case = opened(can_read=True)
    step = case.handle("provision_set", "start", T - 0.1, updated_at=updated_at, provision_state="cleaning")
    assert (step.outcome, step.report, step.read) == ("late", None, read)


@with_and_without
def test_the_update_time_decides_if_the_event_time_is_wrong(can_read: bool) -> None:
    case = opened(can_read=can_read)
    step = case.handle("provision_set", "start", T - 5, updated_at=T + 3, provision_state="deploying")
    assert step.outcome == "told" and not case.open
    assert case.reported is not None and case.reported.sequence > T * 1e6, "or placement would not believe it"


def test_notifications_from_before_a_read_lead_to_another_read() -> None:
    case = closed(can_read=True)
    case.read(T + 10, replace(READ, updated_at=T))
    assert case.open
    step = case.handle("maintenance_set", "end", T + 9, updated_at=T, maintenance=True)
    assert (step.outcome, step.read) == ("late", True)
    assert not case.handle("power_set", "end", T + 9, updated_at=T).read, "it says nothing else"


@with_and_without
def test_unchanged_states_are_not_reported_again(can_read: bool) -> None:
    case = opened(can_read=can_read)
    step = case.handle("update", "end", T + 5, updated_at=T + 5, name="renamed", properties={"cpus": 8})
    assert (step.outcome, step.report, step.read) == ("same", None, False)


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


@pytest.mark.parametrize(
    "older", [{"maintenance": True}, {"instance_uuid": INSTANCE}, {"resource_class": "silver"}]
)
@with_and_without
def test_an_older_update_only_changes_traits(older: dict[str, Any], can_read: bool) -> None:
    case = opened(can_read=can_read)
    before = case.reported
    step = case.handle("update", "end", T + 0.6, updated_at=T - 3, **older)
    assert (step.report, step.read) == (None, can_read)
    assert case.reported == before


@pytest.mark.parametrize("changes", [{}, {"traits": ("CUSTOM_Y",)}])
@pytest.mark.parametrize("updated_at", [T - 3, T])
@pytest.mark.parametrize(
    "why", [{"provision_state": "deploying"}, {"maintenance": True}, {"instance_uuid": INSTANCE}]
)
def test_an_older_update_does_not_open_a_node(
    why: dict[str, Any], updated_at: float, changes: dict[str, Any]
) -> None:
    case = BeliefCase(can_read=False)
    case.handle("provision_set", "start", T + 0.1, updated_at=T, **why)
    case.handle("update", "end", T + 0.6, updated_at=updated_at, **changes)
    assert case.reported is not None and not case.open


def test_maintenance_can_change_twice_within_a_second() -> None:
    case = opened(can_read=False)
    case.handle("maintenance_set", "end", T + 0.3, updated_at=T, maintenance=True)
    assert not case.open
    case.handle("maintenance_set", "end", T + 0.6, updated_at=T)
    assert case.open


def test_a_maintenance_change_does_not_open_a_cleaning_node() -> None:
    case = BeliefCase(can_read=False)
    case.handle("provision_set", "start", T + 0.3, updated_at=T, provision_state="cleaning")
    case.handle("maintenance_set", "end", T + 0.301, updated_at=T)
    assert not case.open


def test_events_after_the_snapshot_of_an_opening_update_count() -> None:
    case = BeliefCase(can_read=False)
    case.handle("update", "end", T + 2.7, updated_at=T + 2, traits=("CUSTOM_Y",))
    assert case.open
    case.handle("provision_set", "start", T + 2.4, updated_at=T + 2, provision_state="deploying")
    assert not case.open


def test_an_opening_event_older_than_a_closing_update_is_late() -> None:
    case = opened(can_read=False)
    case.handle("update", "end", T + 2.7, updated_at=T + 2, instance_uuid=INSTANCE)
    case.handle("provision_set", "end", T + 2.4, updated_at=T + 2)
    assert not case.open


# What cannot be


@pytest.mark.parametrize("changes", [{"resource_class": ""}, {"traits": ("no trait",)}])
def test_invalid_notifications_change_nothing(changes: dict[str, Any]) -> None:
    case = opened(can_read=False)
    before = case.beliefs.of(NODE)
    with pytest.raises(Invalid):
        case.handle("provision_set", "start", T + 1, **changes)
    assert case.beliefs.of(NODE) is before


def test_a_node_without_a_resource_class_is_not_reported() -> None:
    case = opened(can_read=False)
    step = case.handle("provision_set", "start", T + 1, updated_at=T + 1, resource_class=None)
    assert (step.outcome, step.report) == ("no class", None) and case.open


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
