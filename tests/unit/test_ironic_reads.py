"""The effect of a read on the known state, deleted nodes, and owners: see `core/known_state.py`."""

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from ironic_sync.core.known_state import InPlacement, Step
from ironic_sync.core.node import Place
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


def test_a_read_that_confirms_the_state_settles_it() -> None:
    case = opened(can_read=True)
    before = case.beliefs.received
    case.handle("power_set", "start", T + 1, updated_at=T + 1)
    step = case.read(T + 1.1, received=before)
    assert (step.report, step.read) == (None, False)


def test_a_read_counts_from_when_it_began_and_always_for_more_than_before() -> None:
    case = closed(can_read=True)
    case.read(T + 1.5)
    assert case.reported is not None and case.reported.sequence == int((T + 1.5) * 1e6)
    ahead = BeliefCase(can_read=True)  # of us, by an hour
    ahead.handle("provision_set", "start", T + 3600, provision_state="cleaning")
    ahead.handle("provision_set", "end", T + 3601, updated_at=T)
    ahead.read(T + 1)
    assert ahead.reported is not None and ahead.reported.sequence > (T + 3601) * 1e6


def test_a_sweep_repeats_reports_that_placement_lacks() -> None:
    case = opened(can_read=True)
    assert case.reported is not None
    known = case.reported.sequence + 10**9
    assert case.read(T + 1).report is None
    step = case.read(T + 1, in_placement=InPlacement(known))
    assert step.report is not None and step.report.sequence == known + 1


def test_a_node_reported_by_a_tool_is_reported_again() -> None:
    case = opened(can_read=False)
    case.beliefs.reported_elsewhere(NODE, int((T + 1) * 1e6))
    assert case.handle("power_set", "end", T + 2, updated_at=T + 2).outcome == "reported"


def learned(case: BeliefCase, at: float) -> bool:
    return case.beliefs.placement_has(NODE, int(at * 1e6))


@with_and_without
def test_a_report_by_another_process_invalidates_the_last_one(can_read: bool) -> None:
    case = closed(can_read=can_read)
    again: dict[str, Any] = {"updated_at": T, "provision_state": "cleaning"}
    assert not learned(case, T) and not learned(case, T - 1), "our own, or before it"
    assert case.handle("power_set", "end", T + 1, **again).outcome == "same"
    assert learned(case, T + 2)
    assert case.handle("power_set", "end", T + 3, **again).outcome == "reported"
    case.beliefs.forget_reported()
    assert case.handle("power_set", "end", T + 4, **again).outcome == "reported"


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


@with_and_without
def test_a_deleted_node_is_reported_without_a_known_state(can_read: bool) -> None:
    ways: tuple[Callable[[BeliefCase], Step], ...] = (
        lambda case: case.handle("delete", "end", T + 1),
        lambda case: case.read(T + 1, None),
    )
    for ends in ways:
        case = opened(can_read=can_read)
        case.beliefs.forget_reported()
        assert ends(case).outcome == "gone" and case.reported is not None and case.reported.gone


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


def test_a_sweep_removes_a_node_of_an_earlier_assignment() -> None:
    case = BeliefCase(can_read=True)
    was = Place(cell="cell9", agent="other", zone="north")
    step = case.read(T + 1, None, in_placement=InPlacement(int(T * 2e6), was))
    assert step.report is not None and step.report.gone
    assert (step.report.cell, step.report.agent, step.report.zone) == ("cell9", "other", "north")
    assert step.report.sequence == int(T * 2e6) + 1


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


@with_and_without
def test_a_hint_has_the_node_read(can_read: bool) -> None:
    case = opened(can_read=can_read)
    step = case.hint(T + 1)
    assert (step.report, step.read) == (None, can_read)


def test_a_hint_during_a_read_invalidates_the_read() -> None:
    case = closed(can_read=True)
    before = case.beliefs.received
    case.hint(T + 1)
    assert case.read(T + 1, received=before).read and not case.open
