"""The effect of a read on the known state, deleted nodes, and owners: see `core/known_state.py`."""

from typing import Any

from msgspec.structs import replace

from ironic_sync.core.rule import is_open
from tests.support.ironic_builders import NODE, PLACE, READ, BeliefCase, T, closed, opened, with_and_without


def test_a_read_overlapping_a_notification_opens_nothing() -> None:
    case = closed(can_read=True)
    before = case.beliefs.received
    case.handle("provision_set", "end", T + 1, updated_at=T + 1)
    step = case.read(T + 1.1, received=before)
    assert (step.outcome, step.read) == ("read", True) and not case.open
    assert case.read(T + 1.2).outcome == "reported" and case.open


def test_a_read_overlapping_a_notification_may_close_a_node() -> None:
    case = opened(can_read=True)
    before = case.beliefs.received
    case.handle("power_set", "start", T + 1, updated_at=T + 1)
    step = case.read(T + 1.1, replace(READ, maintenance=True), received=before)
    assert (step.outcome, step.read) == ("reported", True) and not case.open


def test_a_read_overlapping_a_notification_does_not_delete_a_node() -> None:
    case = BeliefCase(can_read=True)
    before = case.beliefs.received
    case.handle("create", "end", T, provision_state="enroll")
    assert case.read(T - 0.1, None, received=before) == (case.beliefs.of(NODE), "read", None, True)


def test_a_node_reported_by_a_tool_is_reported_again() -> None:
    case = opened(can_read=False)
    case.beliefs.reported_elsewhere(NODE, int((T + 1) * 1e6))
    assert case.handle("power_set", "end", T + 2, updated_at=T + 2).outcome == "reported"


def learned(case: BeliefCase, at: float) -> bool:
    return case.beliefs.placement_has(NODE, int(at * 1e6))


@with_and_without
def test_events_older_than_another_report_only_close(can_read: bool) -> None:
    for state, outcome, read in (
        ("cleaning", "reported", can_read),
        ("available", "read" if can_read else "late", can_read),
    ):
        case = BeliefCase(can_read=can_read)
        learned(case, T + 3600)
        step = case.handle("provision_set", "end", T, updated_at=T, provision_state=state)
        assert (step.outcome, step.read) == (outcome, read)
        if step.report is not None:
            assert step.report.sequence > (T + 3600) * 1e6


def test_without_an_api_later_events_are_reported_again() -> None:
    case = opened(can_read=False)
    case.handle("provision_set", "start", T + 2, updated_at=T, provision_state="cleaning")
    other = int((T + 1) * 1e6)
    assert case.beliefs.newer(NODE, int((T + 3) * 1e6)) is None
    again = case.beliefs.newer(NODE, other)
    assert again is not None and not is_open(again) and again.sequence > (T + 2) * 1e6


# The end of a node


@with_and_without
def test_a_deleted_node_stays_deleted_until_created_again(can_read: bool) -> None:
    case = opened(can_read=can_read)
    step = case.handle("delete", "end", T + 1)
    assert step.outcome == "gone" and case.reported is not None and case.reported.gone
    assert case.handle("delete", "end", T + 1).report is None
    echo = case.handle("power_state_corrected", "success", T + 1.2, power_state=None)
    assert (echo.report, echo.read) == (None, can_read)
    assert (
        case.handle("create", "end", T + 2, updated_at=None, provision_state="enroll").outcome == "reported"
    )
    assert not case.reported.gone


@with_and_without
def test_events_from_before_a_recreation_are_late(can_read: bool) -> None:
    case = opened(can_read=can_read)
    case.handle("delete", "end", T + 1.5)
    case.handle("create", "end", T + 2, updated_at=None, provision_state="enroll")
    step = case.handle("provision_set", "end", T + 1, updated_at=T + 1)
    assert (step.outcome, step.report) == ("late", None) and not case.open


@with_and_without
def test_an_unselected_node_is_not_reported(can_read: bool) -> None:
    case = BeliefCase(can_read=can_read, place=lambda node: None)
    notified = case.handle("provision_set", "end", T), case.handle("delete", "end", T + 1)
    for step in (*notified, case.read(T + 2), case.read(T + 3, None)):
        assert step.report is None and not step.read


def test_a_read_that_finds_no_node_ends_it() -> None:
    case = opened(can_read=True)
    assert case.read(T + 1, None).outcome == "gone"
    assert case.reported is not None and case.reported.gone
    assert case.read(T + 2, None).report is None


def test_a_node_selected_by_shard_is_read_before_its_report() -> None:
    rules: dict[str, Any] = {
        "only_reads_place": True,
        "place": lambda node: PLACE if node.shard == "a" else None,
    }
    case = BeliefCase(can_read=True, **rules)
    step = case.handle("provision_set", "start", T, provision_state="cleaning")
    assert (step.report, step.read) == (None, True)
    case.read(T + 1, replace(READ, shard="a", provision_state="cleaning"))
    assert case.reported is not None
    case.read(T + 2, replace(READ, shard="a"))
    assert case.handle("provision_set", "start", T + 3, provision_state="deploying").outcome == "reported"
    assert case.handle("update", "end", T + 4, provision_state="deploying").read, "its shard may be another"
    stranger = BeliefCase(can_read=True, **rules)
    assert stranger.handle("provision_set", "end", T).read
    assert stranger.read(T + 1, replace(READ, shard="b")).outcome == "not ours"
    assert stranger.handle("provision_set", "start", T + 2, provision_state="deploying").outcome == "not ours"


def test_a_hint_during_a_read_invalidates_the_read() -> None:
    case = closed(can_read=True)
    before = case.beliefs.received
    case.hint(T + 1)
    assert case.read(T + 1, received=before).read and not case.open
