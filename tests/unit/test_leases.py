"""Leases from both sides: when an agent may act, and when a conductor considers a lease expired."""

import pytest

from bus.leases import LeaseAnswered, NodeLent
from cell_conductor.core.ring import DRIFT, GRACE, Sightings
from ironic_sync.agent.lease import LeasedNodes
from tests.support.ids import uid

N1, N2 = uid(1, "c"), uid(2, "c")
LEASE = 2.0


# A conductor


def seen(*looks: tuple[float, dict[str, int]], heard: tuple[float, ...] = ()) -> Sightings:
    sightings = Sightings(deaf_after=1.0)
    events = sorted(
        [*((at, beats) for at, beats in looks), *((at, None) for at in heard)], key=lambda e: e[0]
    )
    for at, beats in events:
        if beats is None:
            sightings.renewed(at)
        else:
            sightings.note({agent: (1, beat) for agent, beat in beats.items()}, at)
    return sightings


def over_at(sightings: Sightings, agent: str, beat: int) -> float:
    return sightings.left(agent, (1, beat), LEASE, 0.0)


CERTAIN = LEASE * (1 + DRIFT) + GRACE


def test_a_lease_is_over_so_long_after_its_last_beat_was_seen_first() -> None:
    others = [(0.5 * n, {"a": min(n, 3), "b": n}) for n in range(8)]
    assert over_at(seen(*others), "a", 3) == pytest.approx(1.5 + CERTAIN)


def test_who_was_never_seen_has_all_of_it_before_him() -> None:
    assert seen((5.0, {"b": 1})).left("a", (1, 1), LEASE, 6.0) == pytest.approx(CERTAIN)


def test_who_was_heard_of_since_has_all_of_it_before_him() -> None:
    assert seen((5.0, {"a": 1})).left("a", (1, 2), LEASE, 9.0) == pytest.approx(CERTAIN)
    assert seen((5.0, {"a": 1})).left("a", (2, 1), LEASE, 9.0) == pytest.approx(CERTAIN)


def test_when_nobody_is_heard_of_it_is_we_who_are_deaf() -> None:
    silence = [(float(n), {"a": 1, "b": 1}) for n in range(10)]
    assert over_at(seen(*silence), "a", 1) == pytest.approx(9.0 + CERTAIN)


def test_after_that_everybody_has_time_to_be_heard_again() -> None:
    silence = [(float(n), {"a": 1, "b": 1}) for n in range(10)]
    assert over_at(seen(*silence, (10.0, {"a": 1, "b": 2})), "a", 1) == pytest.approx(10.0 + CERTAIN)


def test_a_question_is_news_too() -> None:
    looks = [(float(n), {"a": 1}) for n in range(4)]
    assert over_at(seen(*looks, heard=(0.5, 1.2, 1.9, 2.5, 3.2)), "a", 1) == pytest.approx(CERTAIN)


def test_an_agent_s_lease_is_over_by_its_own_clock_before_it_is_certain() -> None:
    asked, stored_and_seen = 100.0, 100.0
    mine = LeasedNodes()
    mine.answered(asked, LeaseAnswered(epoch=1, seconds=LEASE, version=1))
    certain = seen((stored_and_seen, {"a": 1}), (stored_and_seen, {"a": 1}))
    at = stored_and_seen + certain.left("a", (1, 1), LEASE, stored_and_seen)
    slow = asked + (at - asked) * (1 - DRIFT / (1 + DRIFT))
    assert not mine.good(slow)


# An agent


def lent(*answers: tuple[float, LeaseAnswered]) -> LeasedNodes:
    mine = LeasedNodes()
    for asked_at, answer in answers:
        mine.answered(asked_at, answer)
    return mine


def an_answer(
    *nodes: tuple[str, int], epoch: int = 1, more: bool = False, refused: str = ""
) -> LeaseAnswered:
    lent_nodes = tuple(NodeLent(root, epoch_) for root, epoch_ in nodes)
    return LeaseAnswered(epoch=epoch, seconds=LEASE, version=5, nodes=lent_nodes, more=more, refused=refused)


# answers (and when they were asked for); an order's node and epoch, and when it came; now; how it stands
STANDING = {
    "no answer yet": ([], (N1, 1, 0.0), 1.0, "not yet"),
    "ours": ([(0.0, an_answer((N1, 4)))], (N1, 4, 1.0), 1.5, "ours"),
    "ours, ordered by who knows no epochs": ([(0.0, an_answer((N1, 4)))], (N1, 0, 1.0), 1.5, "ours"),
    "the lease is over": ([(0.0, an_answer((N1, 4)))], (N1, 4, 1.0), 2.0, "not yet"),
    "an epoch that has passed": ([(0.0, an_answer((N1, 4)))], (N1, 3, 1.0), 1.5, "over"),
    "an epoch to come": ([(0.0, an_answer((N1, 4)))], (N1, 5, 1.0), 1.5, "not yet"),
    "... that never came": ([(1.2, an_answer((N1, 4)))], (N1, 5, 1.0), 1.5, "over"),
    "never ours, perhaps it will be": ([(0.0, an_answer())], (N1, 1, 1.0), 1.5, "not yet"),
    "not ours": ([(1.2, an_answer())], (N1, 1, 1.0), 1.5, "over"),
    "not ours, but there is more to come": ([(1.2, an_answer(more=True))], (N1, 1, 1.0), 1.5, "not yet"),
    "no longer ours": ([(0.0, an_answer((N1, 4))), (1.2, an_answer((N1, 0)))], (N1, 4, 1.0), 1.5, "over"),
    "others change": ([(0.0, an_answer((N1, 4))), (1.0, an_answer((N2, 0)))], (N1, 4, 1.0), 1.5, "ours"),
    "another lease": ([(0.0, an_answer((N1, 4))), (1.2, an_answer(epoch=2))], (N1, 4, 1.0), 1.5, "over"),
    "refused": ([(0.0, an_answer((N1, 4))), (1.0, an_answer(refused="no"))], (N1, 4, 0.5), 2.0, "not yet"),
    "an answer of a lease before": (
        [(0.0, an_answer((N1, 4), epoch=2)), (1.0, an_answer(epoch=1))], (N1, 4, 0.5), 2.0, "not yet"
    ),
}  # fmt: skip


@pytest.mark.parametrize("answers, order, now, stands", STANDING.values(), ids=STANDING.keys())
def test_how_an_order_stands(
    answers: list[tuple[float, LeaseAnswered]], order: tuple[str, int, float], now: float, stands: str
) -> None:
    assert lent(*answers).standing(*order, now) == stands


def test_it_is_told_what_it_lost() -> None:
    mine = lent((0.0, an_answer((N1, 4), (N2, 2))))
    assert mine.answered(0.5, an_answer((N1, 0))) == {N1}
    assert mine.answered(1.0, an_answer((N2, 3))) == {N2}
    assert mine.answered(1.5, an_answer((N2, 3))) == set()
    assert mine.answered(2.0, an_answer(epoch=2)) == {N2}
