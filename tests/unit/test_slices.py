"""Several schedulers: every host is for one of them to look at first, and all agree which."""

from dataclasses import dataclass

import numpy as np
import pytest

from bus.messages import SchedulerAlive
from scheduler_worker.core.slices import hash_of, slice_of
from scheduler_worker.roster import GONE_SECONDS, Roster
from tests.support.ids import uid
from tests.support.scheduler_builders import TurnedClock

ROOTS = [uid(number, "c") for number in range(4000)]
HASHES = np.array([hash_of(root) for root in ROOTS], np.uint64)


def slices(*names: str) -> dict[str, set[int]]:
    everybody = np.ones(len(ROOTS), np.bool_)
    found = {name: slice_of(HASHES, names, name) for name in names}
    return {
        name: set(np.flatnonzero(everybody if mine is None else mine).tolist())
        for name, mine in found.items()
    }


@pytest.mark.parametrize("several", [1, 2, 3, 4, 9])
def test_every_host_is_for_exactly_one_and_shares_are_about_equal(several: int) -> None:
    shares = slices(*(f"s{number}" for number in range(several)))
    assert sum(map(len, shares.values())) == len(ROOTS)
    assert set.union(*shares.values()) == set(range(len(ROOTS)))
    fair = len(ROOTS) / several
    assert all(0.8 * fair < len(share) < 1.2 * fair for share in shares.values())


def test_who_comes_takes_from_all_and_who_goes_gives_only_his() -> None:
    three, four = slices("a", "b", "c"), slices("a", "b", "c", "d")
    for name in "abc":
        assert four[name] < three[name]
    assert four["d"] == set.union(*(three[name] - four[name] for name in "abc"))


def test_names_that_hash_alike_still_share_nothing() -> None:
    same = np.array([5, 5, 5], np.uint64)
    ours, theirs = slice_of(same, ("a", "b"), "a"), slice_of(same, ("b", "a"), "b")
    assert ours is not None and theirs is not None
    assert (ours ^ theirs).all()


@dataclass(frozen=True)
class AHost:
    position: int
    uuid: str


class AFewHosts:
    """As much of a source as a roster reads."""

    def __init__(self, roots: list[str]) -> None:
        self.roots = roots
        self.layout = 1

    @property
    def size(self) -> int:
        return len(self.roots)

    def hosts(self) -> list[AHost]:
        return [AHost(position, root) for position, root in enumerate(self.roots)]


async def test_who_is_silent_or_leaves_shares_no_longer() -> None:
    turned, source = TurnedClock(), AFewHosts(ROOTS[:100])
    roster = Roster(turned.clock, "a")
    assert roster.ours(source) is None  # type: ignore[arg-type]
    await roster.hear(roster.alive())  # its own word comes back to it
    assert roster.live == ("a",)
    await roster.hear(SchedulerAlive(scheduler="b"))
    await roster.hear(SchedulerAlive(scheduler="c"))
    assert roster.live == ("a", "b", "c")
    first = roster.ours(source)  # type: ignore[arg-type]
    assert first is not None and 10 < first.sum() < 60
    await roster.hear(SchedulerAlive(scheduler="c", leaving=True))
    second = roster.ours(source)  # type: ignore[arg-type]
    assert second is not None and second.sum() > first.sum() and (second | ~first).all()
    turned.now += GONE_SECONDS + 0.1
    assert roster.live == ("a",)
    assert roster.ours(source) is None  # type: ignore[arg-type]


async def test_a_host_that_comes_has_its_place_at_once() -> None:
    source, roster = AFewHosts(ROOTS[:10]), Roster(TurnedClock().clock, "a")
    await roster.hear(SchedulerAlive(scheduler="b"))
    before = roster.ours(source)  # type: ignore[arg-type]
    source.roots, source.layout = ROOTS[:500], 2
    after = roster.ours(source)  # type: ignore[arg-type]
    assert before is not None and after is not None
    assert len(after) == 500 and (after[:10] == before).all()
