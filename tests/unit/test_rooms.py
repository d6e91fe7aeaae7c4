"""Trees are used up provider by provider, and a pool by all who share it."""

from bus.vocabulary import Candidate
from scheduler_worker import ChoicePolicy
from scheduler_worker.core.host import Host
from scheduler_worker.core.ranking import Ranking, rank
from scheduler_worker.core.rooms import Rooms, nothing_taken
from tests.support.ids import uid
from tests.support.scheduler_builders import a_request

POOL = uid(99, "c")
PLENTY = ChoicePolicy.from_names(weighers=[], max_builds=100)


def child(host: int, number: int) -> str:
    return uid(100 * host + number, "c")


def a_way(host: int, *, asks: dict[str, dict[str, int]], free: dict[str, dict[str, int]]) -> Candidate:
    return Candidate(
        root=uid(host, "c"), host=f"host{host}", cell="c1", agent="a", zone="",
        allocations=asks, shapes=dict.fromkeys(asks, 1), free={"VCPU": 8}, rooms=free,
    )  # fmt: skip


def numa(host: int, cells: int, *, free: int = 4) -> list[Candidate]:
    """Each way takes 4 CPUs of one child."""
    return [
        a_way(host, asks={child(host, nth): {"VCPU": 4}}, free={child(host, nth): {"VCPU": free}})
        for nth in range(cells)
    ]


def pooled(host: int, free: int) -> list[Candidate]:
    """One way: 1 CPU of the root, and 10 GB of a pool."""
    root = uid(host, "c")
    asks, room = {root: {"VCPU": 1}, POOL: {"DISK_GB": 10}}, {root: {"VCPU": 8}, POOL: {"DISK_GB": free}}
    return [a_way(host, asks=asks, free=room)]


def trees(*of_hosts: list[Candidate], taken: dict[str, dict[str, int]] | None = None) -> list[Host]:
    rooms = Rooms(lambda provider: (taken or {}).get(provider, {}))
    for ways in of_hosts:
        for way in ways:
            rooms.add(way)
    return [Host(ways[0], rooms=rooms, ways=ways) for ways in of_hosts]


def ranked(*hosts: Host) -> Ranking:
    return rank(a_request(), hosts, PLENTY, "s")


def taken_of(ranking: Ranking, times: int) -> list[list[str]]:
    """The providers of the first choice, as long as there is one."""
    picks = [ranking.take() for _ in range(times)]
    return [sorted(pick.way.allocations) for pick in picks if pick is not None]


def test_each_child_serves_as_often_as_it_has_room() -> None:
    assert taken_of(ranked(*trees(numa(1, 2))), 3) == [[child(1, 0)], [child(1, 1)]]
    assert len(taken_of(ranked(*trees(numa(1, 2, free=8))), 9)) == 4


def test_what_was_chosen_before_counts_where_it_was_chosen() -> None:
    hosts = trees(numa(1, 2), taken={child(1, 0): {"VCPU": 1}})
    assert taken_of(ranked(*hosts), 3) == [[child(1, 1)]]


def test_a_pool_is_used_up_by_all_who_share_it() -> None:
    assert len(taken_of(ranked(*trees(pooled(1, 25), pooled(2, 25))), 9)) == 2


def test_what_is_put_back_has_room_again() -> None:
    ranking = ranked(*trees(pooled(1, 20), pooled(2, 20)))
    picks = [pick for pick in (ranking.take() for _ in range(3)) if pick is not None]
    assert len(picks) == 2
    ranking.put_back(picks)
    assert len(taken_of(ranking, 3)) == 2


def test_a_claim_names_the_ways_of_a_host_before_the_next_host() -> None:
    pick = ranked(*trees(numa(1, 2), numa(2, 2))).take(several=2)
    assert pick is not None
    roots = [host.root for host, _ in pick.choices]
    assert roots == [roots[0]] * 2 + [roots[2]] * 2
    assert roots[0] != roots[2]


def test_of_a_host_what_is_to_be_avoided_comes_last_and_then_the_host() -> None:
    hosts = trees(numa(1, 2), numa(2, 2))
    avoid = {child(1, 0), child(1, 1), child(2, 0)}
    pick = ranked(*hosts).take(several=1, avoid=avoid)
    assert pick is not None
    assert [sorted(way.allocations) for _, way in pick.choices] == [[child(2, 1)], [child(2, 0)]]


def test_without_a_word_on_its_rooms_a_way_fits_once() -> None:
    way = a_way(1, asks={child(1, 0): {"VCPU": 4}, child(1, 1): {"VCPU": 4}}, free={})
    rooms = Rooms(nothing_taken)
    rooms.add(way)
    assert rooms.fits(way)
    rooms.take(way)
    assert not rooms.fits(way)


def test_alternates_need_room_in_some_way() -> None:
    ranking = ranked(*trees(pooled(1, 10), pooled(2, 10), numa(3, 1)))
    while (pick := ranking.take()) is not None and POOL not in pick.way.allocations:
        pass
    assert [host.root for host in ranking.alternates("c1", 5, ())] in ([], [uid(3, "c")])
