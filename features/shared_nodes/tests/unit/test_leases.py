"""When a lease ends for its agent and for the conductor, and which orders an agent may execute under it."""

import pytest

from features.shared_nodes.core.ring import DRIFT, GRACE, LastRenewals
from features.shared_nodes.lease import LeasedNodes
from features.shared_nodes.messages import LeaseAnswered, NodeLent
from tests.support.ids import uid

N1, N2 = uid(1, "c"), uid(2, "c")
LEASE = 2.0


def seen(*looks: tuple[float, dict[str, int]], arrived: tuple[float, ...] = ()) -> LastRenewals:
    renewals = LastRenewals(silent_after=1.0)
    events = sorted(
        [*((at, beats) for at, beats in looks), *((at, None) for at in arrived)], key=lambda e: e[0]
    )
    for at, beats in events:
        if beats is None:
            renewals.renewed(at)
        else:
            renewals.note({agent: (1, beat) for agent, beat in beats.items()}, at)
    return renewals


def over_at(renewals: LastRenewals, agent: str, beat: int) -> float:
    return renewals.left(agent, (1, beat), LEASE, 0.0)


CERTAIN = LEASE * (1 + DRIFT) + GRACE


def test_a_lease_is_over_so_long_after_its_last_beat_was_seen_first() -> None:
    others = [(0.5 * n, {"a": min(n, 3), "b": n}) for n in range(8)]
    assert over_at(seen(*others), "a", 3) == pytest.approx(1.5 + CERTAIN)


def test_an_unknown_agent_has_a_full_lease_left() -> None:
    assert seen((5.0, {"b": 1})).left("a", (1, 1), LEASE, 6.0) == pytest.approx(CERTAIN)


def test_an_agent_with_a_new_heartbeat_has_a_full_lease_left() -> None:
    assert seen((5.0, {"a": 1})).left("a", (1, 2), LEASE, 9.0) == pytest.approx(CERTAIN)
    assert seen((5.0, {"a": 1})).left("a", (2, 1), LEASE, 9.0) == pytest.approx(CERTAIN)


def test_leases_do_not_expire_while_all_agents_are_silent() -> None:
    silence = [(float(n), {"a": 1, "b": 1}) for n in range(10)]
    assert over_at(seen(*silence), "a", 1) == pytest.approx(9.0 + CERTAIN)


def test_after_a_common_silence_every_lease_is_extended() -> None:
    silence = [(float(n), {"a": 1, "b": 1}) for n in range(10)]
    assert over_at(seen(*silence, (10.0, {"a": 1, "b": 2})), "a", 1) == pytest.approx(10.0 + CERTAIN)


def test_a_lease_query_counts_as_a_heartbeat() -> None:
    looks = [(float(n), {"a": 1}) for n in range(4)]
    assert over_at(seen(*looks, arrived=(0.5, 1.2, 1.9, 2.5, 3.2)), "a", 1) == pytest.approx(CERTAIN)


def test_an_agent_ends_its_lease_before_the_conductor_does() -> None:
    asked, stored_and_seen = 100.0, 100.0
    mine = LeasedNodes()
    mine.answered(asked, LeaseAnswered(epoch=1, seconds=LEASE, version=1))
    certain = seen((stored_and_seen, {"a": 1}), (stored_and_seen, {"a": 1}))
    at = stored_and_seen + certain.left("a", (1, 1), LEASE, stored_and_seen)
    slow = asked + (at - asked) * (1 - DRIFT / (1 + DRIFT))
    assert not mine.good(slow)


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
def test_the_state_of_an_order_under_a_lease(
    answers: list[tuple[float, LeaseAnswered]], order: tuple[str, int, float], now: float, stands: str
) -> None:
    assert lent(*answers).standing(*order, now) == stands


def test_the_lease_answer_names_lost_nodes() -> None:
    mine = lent((0.0, an_answer((N1, 4), (N2, 2))))
    assert mine.answered(0.5, an_answer((N1, 0))) == {N1}
    assert mine.answered(1.0, an_answer((N2, 3))) == {N2}
    assert mine.answered(1.5, an_answer((N2, 3))) == set()
    assert mine.answered(2.0, an_answer(epoch=2)) == {N2}
