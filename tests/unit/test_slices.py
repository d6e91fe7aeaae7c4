"""Several schedulers: every host is in exactly one slice, and all schedulers agree."""

from collections.abc import Iterable

import numpy as np
import pytest

from bus.messages import SchedulerAlive
from scheduler_worker.core.host_map import mixed, slice_of
from scheduler_worker.roster import GONE_SECONDS, Roster
from tests.support.ids import uid
from tests.support.ranking_builders import Hall, a_hall, free, hosts_of, take
from tests.support.scheduler_builders import TurnedClock, a_request

ROOTS = [uid(number, "c") for number in range(4000)]
HASHES = np.array([mixed(root) for root in ROOTS], np.uint64)


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


def test_a_new_scheduler_takes_from_all_and_a_leaving_one_gives_only_its_own() -> None:
    three, four = slices("a", "b", "c"), slices("a", "b", "c", "d")
    for name in "abc":
        assert four[name] < three[name]
    assert four["d"] == set.union(*(three[name] - four[name] for name in "abc"))


def test_names_that_hash_alike_still_share_nothing() -> None:
    same = np.array([5, 5, 5], np.uint64)
    ours, theirs = slice_of(same, ("a", "b"), "a"), slice_of(same, ("b", "a"), "b")
    assert ours is not None and theirs is not None
    assert (ours ^ theirs).all()


async def test_a_scheduler_silent_for_some_seconds_has_no_slice() -> None:
    turned = TurnedClock()
    roster = Roster(turned.clock, "b")
    await roster.handle(await roster.say())
    assert list(roster.live) == ["b"]
    await roster.handle(SchedulerAlive(scheduler="c"))
    turned.now += GONE_SECONDS - 0.1
    await roster.handle(SchedulerAlive(scheduler="a"))
    assert list(roster.live) == ["a", "b", "c"]
    turned.now += 0.2
    assert list(roster.live) == ["a", "b"]
    turned.now += GONE_SECONDS
    assert list(roster.live) == ["b"]


# What it does to the order of hosts


def a_shared_hall(own: str, *schedulers: str) -> tuple[Hall, set[str]]:
    hall = a_hall(*(free(number, 1024 * number, vcpus=1) for number in range(1, 31)))
    hall.hosts.level()
    hall.hosts.share(schedulers, own)
    mine = hall.hosts.ours
    return hall, {host.host for host in hall.source.hosts() if mine is None or mine[host.position]}


def freest_first(names: Iterable[str]) -> list[str]:
    return sorted(names, key=lambda name: -int(name.removeprefix("host")))


@pytest.mark.parametrize("own", ["a", "b", "c"])
def test_own_hosts_come_first_then_those_of_others(own: str) -> None:
    hall, mine = a_shared_hall(own, "a", "b", "c")
    ranking = hall.rank()
    picks = [take(ranking) for _ in range(30)]
    order = [hosts_of(pick)[0] for pick in picks]
    assert order == [*freest_first(mine), *freest_first(set(order) - mine)]
    assert [pick.crossed for pick in picks] == [name not in mine for name in order]
    assert 0 < len(mine) < 30


def test_a_single_scheduler_and_requests_with_named_hosts_ignore_slices() -> None:
    hall, mine = a_shared_hall("a", "a")
    assert len(mine) == 30 and hosts_of(take(hall.rank())) == ["host30"]
    hall, mine = a_shared_hall("a", "a", "b", "c")
    theirs = freest_first({host.host for host in hall.source.hosts()} - mine)[0]
    pick = take(hall.rank(a_request(wanted_host=theirs)))
    assert hosts_of(pick) == [theirs] and not pick.crossed


def test_a_host_outside_stays_behind_ours_when_it_is_weighed_again() -> None:
    hall, mine = a_shared_hall("a", "a", "b")
    ranking = hall.rank()
    picks = [take(ranking) for _ in range(len(mine) + 3)]
    ranking.put_back([*picks[:2], *picks[-2:]])  # two of ours are free again, and two of theirs
    assert hosts_of(take(ranking, 3))[:2] == freest_first(mine)[:2]


def test_hosts_outside_that_differ_by_next_to_nothing_keep_their_order() -> None:
    hall = a_hall(*(free(number, 2**43 + number, vcpus=1) for number in range(1, 31)))
    hall.hosts.level()
    hall.hosts.share(("a", "b"), "a")
    ranking = hall.rank()
    picks = [take(ranking) for _ in range(30)]
    outside = [hosts_of(pick)[0] for pick in picks if pick.crossed]
    assert len(outside) > 5 and outside == freest_first(outside)
