"""The provision states: every verb in every state, what a step is called, where a node is bound for."""

import pytest

from compute_sim.ironic.node import PATHS, STABLE, UNSTABLE, WAITING, event_of, move

# What a client may ask for, and where it leads; in every other state it is refused.
VERBS = {
    "manage": {
        "enroll": "verifying", "inspect failed": "manageable", "adopt failed": "manageable",
        "clean failed": "manageable", "available": "manageable",
    },
    "provide": {"manageable": "cleaning"},
    "clean": {"manageable": "cleaning"},
    "inspect": {"manageable": "inspecting", "inspect failed": "inspecting"},
    "adopt": {"manageable": "adopting", "adopt failed": "adopting"},
    "active": {"available": "deploying", "deploy failed": "deploying"},
    "deploy": {"available": "deploying", "deploy failed": "deploying"},
    "rebuild": {"active": "deploying", "deploy failed": "deploying", "error": "deploying"},
    "deleted": {
        "active": "deleting", "error": "deleting", "deploy failed": "deleting", "wait call-back": "deleting",
        "rescue": "deleting", "rescue failed": "deleting", "rescue wait": "deleting",
        "unrescue failed": "deleting", "service failed": "deleting", "service wait": "deleting",
    },
    "rescue": {
        "active": "rescuing", "rescue": "rescuing", "rescue failed": "rescuing",
        "unrescue failed": "rescuing", "service failed": "rescuing",
    },
    "unrescue": {"rescue": "unrescuing", "rescue failed": "unrescuing", "unrescue failed": "unrescuing"},
    "service": {"active": "servicing", "service hold": "servicing", "service failed": "servicing"},
    "abort": {
        "clean wait": "clean failed", "clean hold": "clean failed", "inspect wait": "inspect failed",
        "wait call-back": "deploy failed", "deploy hold": "deploy failed", "rescue wait": "rescue failed",
        "service wait": "service failed", "service hold": "service failed", "service failed": "active",
    },
    "unhold": {
        "clean hold": "clean wait", "deploy hold": "wait call-back", "service hold": "service wait",
    },
}  # fmt: skip
VERBS["undeploy"] = VERBS["deleted"]
# Two that are meant for the conductor are let through as far as the lock, which is never free then.
VERBS["manage"]["cleaning"] = "manageable"
VERBS["clean"]["deleting"] = "cleaning"


def test_the_simulated_states_equal_ironics_states() -> None:
    assert len(PATHS) == 30
    assert {state for paths in PATHS.values() for state in paths.values()} <= PATHS.keys()
    assert sorted(STABLE) == ["active", "available", "enroll", "error", "manageable", "rescue"]
    assert not STABLE & UNSTABLE
    assert WAITING < UNSTABLE


@pytest.mark.parametrize("verb", sorted(VERBS))
@pytest.mark.parametrize("state", sorted(PATHS))
def test_a_verb_leads_where_it_should_or_is_refused(verb: str, state: str) -> None:
    event = event_of(verb, state)
    wanted = VERBS[verb].get(state)
    assert (move(state, event).state if event else None) == wanted


@pytest.mark.parametrize("word", ["", "done", "fail", "resume", "wait", "available", "nonsense"])
@pytest.mark.parametrize("state", sorted(PATHS))
def test_internal_events_are_not_provision_verbs(word: str, state: str) -> None:
    assert event_of(word, state) is None


STEPS = [
    ("enroll", "manage", "verifying", "manageable", "start"),
    ("verifying", "done", "manageable", None, "end"),
    ("verifying", "fail", "enroll", None, "error"),
    ("manageable", "provide", "cleaning", "available", "start"),
    ("cleaning", "done", "available", None, "end"),
    ("cleaning", "manage", "manageable", None, "end"),
    ("cleaning", "wait", "clean wait", "available", "success"),
    ("cleaning", "fail", "clean failed", "available", "error"),
    ("clean wait", "abort", "clean failed", "available", "end"),
    ("clean failed", "manage", "manageable", None, "success"),
    ("available", "manage", "manageable", None, "success"),
    ("available", "deploy", "deploying", "active", "start"),
    ("deploying", "wait", "wait call-back", "active", "success"),
    ("deploying", "done", "active", None, "end"),
    ("deploying", "fail", "deploy failed", "active", "error"),
    ("deploy failed", "delete", "deleting", "available", "start"),
    ("wait call-back", "delete", "deleting", "available", "success"),
    ("deleting", "clean", "cleaning", "available", "success"),
    ("deleting", "fail", "error", None, "error"),
    ("active", "rescue", "rescuing", "rescue", "start"),
    ("rescuing", "done", "rescue", None, "end"),
    ("active", "service", "servicing", "active", "start"),
    ("servicing", "wait", "service wait", "active", "success"),
    ("manageable", "adopt", "adopting", "active", "start"),
    ("inspecting", "fail", "inspect failed", "manageable", "error"),
    ("inspect wait", "abort", "inspect failed", "manageable", "end"),
]


@pytest.mark.parametrize(("state", "event", "new", "target", "phase"), STEPS)
def test_a_step_has_a_name_and_a_target(
    state: str, event: str, new: str, target: str | None, phase: str
) -> None:
    assert move(state, event) == (new, target, phase)


def test_a_clean_that_was_asked_for_is_bound_for_manageable_until_it_is_there() -> None:
    assert move("manageable", "clean", bound_for="manageable").target == "manageable"
    assert move("cleaning", "fail", bound_for="manageable").target == "manageable"
    assert move("cleaning", "manage", bound_for="manageable").target is None
