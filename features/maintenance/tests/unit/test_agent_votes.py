"""Agents of other hosts vote whether a host without heartbeats is off."""

import pytest

from bus.guests import ProbeResult
from features.maintenance.core.agent_votes import judge_votes, voters_for
from tests.support.ids import uid

DEAD = uid(99, "a")
HOSTS = {f"agent-{number}": uid(number, "a") for number in range(1, 8)}
VOTERS = voters_for(DEAD, HOSTS, 3)


def results(votes: str) -> dict[str, ProbeResult]:
    """Return one result for each letter: n for not reached, r for reached, i for an isolated agent that
    reaches nothing, u for an agent that could not probe, - for no answer.
    """
    found = {}
    for vote, voter in zip(votes, VOTERS, strict=True):
        reached = {"n": (voter.control,), "r": (DEAD, voter.control), "u": (voter.control,)}.get(vote, ())
        unreached = {"n": (DEAD,), "i": (DEAD, voter.control)}.get(vote, ())
        if vote != "-":
            found[voter.agent] = ProbeResult(id=uid(1), reached=reached, unreached=unreached)
    return found


def test_the_voters_are_a_repeatable_choice_of_which_the_quorum_is_a_majority() -> None:
    assert voters_for(DEAD, dict(reversed(HOSTS.items())), 3) == VOTERS
    assert len({voter.agent for voter in VOTERS}) == 5
    assert all(voter.control != HOSTS[voter.agent] for voter in VOTERS)
    choices = {tuple(voters_for(uid(number, "b"), HOSTS, 3)) for number in range(20)}
    assert len(choices) > 10


@pytest.mark.parametrize(
    ("votes", "is_off", "why"),
    [
        ("nnnnn", True, "5 of 5 agents cannot reach it"),
        ("nnn--", True, "3 of 5 agents cannot reach it"),
        ("nn---", False, "2 of 5 agents"),  # a minority that a partition separates from the others
        ("nniii", False, "2 of 5 agents"),  # three agents that are disconnected themselves
        ("nnuuu", False, "2 of 5 agents"),
        ("nnnnr", False, "reaches it"),
        ("-----", False, "0 of 5 agents"),
    ],
)
def test_a_majority_must_not_reach_the_host_and_no_agent_may_reach_it(
    votes: str, is_off: bool, why: str
) -> None:
    judged, sentence = judge_votes(DEAD, VOTERS, results(votes), 3)
    assert judged is is_off and why in sentence


def test_a_cell_with_too_few_agents_confirms_nothing() -> None:
    few = voters_for(DEAD, dict([*HOSTS.items()][:2]), 3)
    answers = {
        voter.agent: ProbeResult(id=uid(1), reached=(voter.control,), unreached=(DEAD,)) for voter in few
    }
    assert judge_votes(DEAD, few, answers, 3)[0] is False
