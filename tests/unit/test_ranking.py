"""The order of hosts: the best first, full hosts, alternates, and the record."""

import gc
import weakref
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import pytest

from bus.queries import Candidate
from bus.reports import HostState
from bus.requests import Image
from scheduler_worker.core.policy import WEIGHERS, ChoicePolicy
from scheduler_worker.core.ranking import Ranking
from scheduler_worker.core.rule import Alternative, HostFacts, OneHost, Rule
from tests.support.ids import uid
from tests.support.ranking_builders import a_hall, free, hosts_of, take
from tests.support.rule_builders import a_wish, the_facts
from tests.support.scheduler_builders import a_candidate, a_request, a_state


def ranked(
    *candidates: Candidate,
    states: Sequence[HostState] = (),
    policy: ChoicePolicy | None = None,
    seed: str = "s",
    **request: object,
) -> Ranking:
    return a_hall(*candidates, states=states, policy=policy).rank(a_request(**request), seed)  # type: ignore[arg-type]


CELL = "cell1"


def best_first(ranking: Ranking) -> list[str]:
    pick = ranking.take(100)
    if pick is None:
        return []
    ranking.put_back([pick])
    return hosts_of(pick)


def alternates(ranking: Ranking, several: int, beside: Collection[str] = (), cell: str = CELL) -> list[str]:
    return [way.host for way in ranking.alternates(cell, several, beside)]


@pytest.mark.parametrize(("near", "strict"), [(0.0, True), (0.5, False)])
def test_near_equals_are_shuffled(near: float, strict: bool) -> None:
    policy = ChoicePolicy(near=near)
    hosts = [free(number, 8000 + number) for number in range(20)]
    orders = {tuple(best_first(ranked(*hosts, policy=policy, seed=seed))) for seed in "abcdef"}
    assert (len(orders) == 1) == strict


def test_one_of_the_best_hosts_is_drawn_if_configured() -> None:
    policy = ChoicePolicy(subset=3)
    hosts = [free(number, 1024 * number) for number in range(1, 10)]

    def winner(draw: int) -> str:
        pick = ranked(*hosts, policy=policy).take(2, draw=lambda among: draw % among)
        assert pick is not None and pick.record.subset == 3
        return pick.choices[0].host

    assert [winner(draw) for draw in range(4)] == ["host9", "host8", "host7", "host9"]


def test_a_host_that_reaches_its_limit_of_builds_is_not_handed_out_again() -> None:
    ranking = ranked(free(1, 8192), policy=ChoicePolicy.from_names(max_builds=2))
    assert [hosts_of(take(ranking)) for _ in range(2)] == [["host1"], ["host1"]]
    assert ranking.take() is None
    assert ranking.verdicts.shortage().may_pass


def test_alternates_are_the_next_best_hosts_and_not_reserved() -> None:
    hall = a_hall(free(1, 2048), free(2, 8192), free(3, 4096))
    assert hosts_of(take(hall.rank(), several=3)) == ["host2", "host3", "host1"]
    assert [entry.root for entry in hall.pending.unsettled] == [uid(2, "c")]


def test_alternates_are_the_next_best_of_the_same_cell() -> None:
    ranking = ranked(free(1, 8192), free(2, 6000, cell="cell2"), free(3, 5000), free(4, 4000), free(5, 3000))
    chosen = take(ranking).root
    assert alternates(ranking, 2, {chosen}) == ["host3", "host4"]
    assert alternates(ranking, 2, {chosen}, cell="cell2") == ["host2"]
    assert alternates(ranking, 0) == []


def test_alternates_leave_out_every_host_chosen_for_the_request() -> None:
    ranking = ranked(*(free(number, 8192 - number) for number in range(4)))
    chosen = {take(ranking).root for _ in range(2)}
    assert alternates(ranking, 5, chosen) == ["host2", "host3"]


def test_an_alternate_named_often_counts_as_fuller() -> None:
    ranking = ranked(free(1, 4096), free(2, 4000), free(3, 2000))
    assert [alternates(ranking, 1)[0] for _ in range(4)] == ["host1", "host2", "host1", "host2"]


def test_an_alternate_is_used_as_often_as_it_has_capacity() -> None:
    ranking = ranked(free(1, 2048), free(2, 1024))
    assert [alternates(ranking, 1) for _ in range(4)] == [["host1"], ["host2"], ["host1"], []]


PACKING = ChoicePolicy.from_names(weighers={"ram": -1.0})


def packed(*capacities: int, seed: str = "s") -> Ranking:
    hosts = [free(position, 1024 * room, vcpus=100) for position, room in enumerate(capacities, 1)]
    return ranked(*hosts, policy=PACKING, seed=seed)


@pytest.mark.parametrize(
    ("capacities", "several", "expected"),
    [
        ((1, 2, 3, 40), 1, ["host1"]),  # one alone is the next best
        ((1, 2, 3, 40), 2, ["host1", "host4"]),
        ((1, 2, 3, 40), 3, ["host1", "host2", "host4"]),
        ((1, 2, 3, 40), 4, ["host1", "host2", "host3", "host4"]),
        ((10, 30, 40), 2, ["host1", "host2"]),  # three quarters of the most is much
        ((10, 29, 40), 2, ["host1", "host3"]),
        ((1, 1, 1), 2, None),  # all alike: as the shuffle has it
        ((1,), 2, ["host1"]),
    ],
)  # fmt: skip
def test_the_last_alternates_have_much_capacity(
    capacities: tuple[int, ...], several: int, expected: list[str] | None
) -> None:
    alike = best_first(packed(*capacities))[:several]
    assert alternates(packed(*capacities), several) == (expected or alike)


def test_roomy_alternates_are_spread_among_a_quarter_of_the_cell_by_the_request() -> None:
    capacities = (*range(1, 31), *[100] * 10)
    ranking = packed(*capacities)
    named = Counter(host for _ in range(20) for host in alternates(ranking, 2))
    assert set(named) == {f"host{position}" for position in range(31, 41)}
    assert set(named.values()) == {4}
    assert len({alternates(packed(*capacities, seed=str(seed)), 2)[1] for seed in range(30)}) > 5
    assert alternates(packed(*capacities), 2) == alternates(packed(*capacities), 2)


def test_a_roomy_alternate_is_an_unused_permitted_host_of_the_cell() -> None:
    hosts = [free(position, 1024 * (20 + position), vcpus=100) for position in (1, 2, 3, 4)]
    hosts += [free(position, 102_400, vcpus=100) for position in (5, 6, 7)]
    hosts.append(free(8, 102_400, vcpus=100, cell="cell2"))
    ranking = ranked(*hosts, states=[a_state(6, building=8)], policy=PACKING)
    five, seven = uid(5, "c"), uid(7, "c")
    assert {alternates(ranking, 2, {five})[1] for _ in range(6)} == {"host7"}
    assert not {"host5", "host6", "host7", "host8"} & set(alternates(ranking, 2, {five, seven}))
    assert set(alternates(ranking, 2)) == {"host5", "host7"}
    avoiding = {way.host for way in ranking.alternates(CELL, 2, {five}, [seven])}
    assert len(avoiding) == 2 and "host7" not in avoiding
    assert alternates(ranking, 2, {five})[1] == "host7"


def test_each_cell_has_its_own_roomiest_hosts() -> None:
    hosts = [free(1, 1024, vcpus=9), free(2, 4096, vcpus=9), free(3, 9216, vcpus=9)]
    others = [free(position, 1024 * (2 * position), vcpus=50, cell="cell2") for position in (4, 5, 20)]
    ranking = ranked(*hosts, *others, policy=PACKING)
    assert alternates(ranking, 2) == ["host1", "host3"]
    assert alternates(ranking, 2, cell="cell2") == ["host4", "host20"]
    assert alternates(ranking, 2, cell="cell3") == []
    assert ranking.capacities.most("cell3") == 0 and ranking.capacities.emptiest("cell3", 0.0) == []


def test_a_roomy_host_that_has_filled_is_not_used() -> None:
    hosts = [free(position, 1024, vcpus=9) for position in (1, 2, 3)]
    ranking = ranked(*hosts, free(4, 9216, vcpus=4), policy=PACKING)
    assert alternates(ranking, 2)[1] == "host4"
    picks = [take(ranking) for _ in range(7)]
    assert Counter(pick.root for pick in picks)[uid(4, "c")] == 4
    assert alternates(ranking, 2) == []
    ranking.put_back(picks[:2])
    assert len(alternates(ranking, 2)) == 2


def test_the_record_has_the_scores_of_the_chosen_host() -> None:
    pick = take(ranked(free(1, 4096, 4), free(2, 8192, 8)), several=2)
    assert pick.decision(uid(2, "c"), ()).scores == {"ram": 1, "cpu": 1, "total": 2}
    assert pick.decision(uid(1, "c"), ()).scores == {"ram": 0.5, "cpu": 0.5, "total": 1}
    assert [scale.weigher for scale in pick.record.scales] == ["ram", "cpu"]
    assert {host.host: host.values for host in pick.record.hosts} == {"host2": (8192, 8), "host1": (4096, 4)}


def test_better_hosts_that_were_refused_are_recorded_with_the_rule() -> None:
    def odd(host: HostFacts, alternative: Alternative) -> str | None:
        return None if int(host.host[4:]) % 2 == 0 else "an odd host"

    policy = ChoicePolicy(rules=(Rule("even_hosts", odd),))
    ranking = ranked(*(free(number, 1024 * number) for number in range(2, 6)), policy=policy)
    pick = take(ranking)
    refused = [(host.host, host.refused) for host in pick.record.hosts]
    assert refused == [("host5", "even_hosts: an odd host"), ("host4", "")]
    assert best_first(ranking) == ["host4", "host2"]
    assert [
        (removal.constraint, removal.removed, removal.hosts) for removal in ranking.verdicts.removals()
    ] == [("even_hosts", 2, ("host5", "host3"))]


def test_removals_are_counted_by_rule_and_near_misses_named() -> None:
    hall = a_hall(
        a_candidate(1, zone="here"),
        a_candidate(2, zone="here"),
        a_candidate(3),
        a_candidate(4, agent="", zone="here"),
        states=[a_state(1, enabled=False), a_state(2, building=8)],
    )
    shortage = hall.rank(a_request(), "s").verdicts.shortage()
    assert [
        (removal.constraint, removal.removed, removal.left, removal.code, removal.hosts)
        for removal in shortage.removals
    ] == [
        ("has_agent", 1, 3, "has_agent", ("host4",)),
        ("enabled", 1, 2, "disabled", ("host1",)),
        ("io_ops", 1, 1, "io_ops", ("host2",)),
    ]
    [miss] = shortage.nearest
    assert (miss.host, miss.lacks) == ("host2", "building 8 already, at most 8 at once")


@pytest.mark.parametrize(
    ("state", "passes"),
    [
        (a_state(1, building=8), True),
        (a_state(1, enabled=False), False),
        (a_state(1, building=8, enabled=False), False),
    ],
    ids=["busy", "disabled", "busy and disabled"],
)
def test_some_obstacles_are_temporary(state: HostState, passes: bool) -> None:
    ranking = ranked(a_candidate(1), states=[state])
    assert ranking.take() is None
    assert ranking.verdicts.shortage().may_pass == passes


def test_a_forced_host_is_used_against_the_rules() -> None:
    hosts, busy = [a_candidate(1), a_candidate(2)], [a_state(1, building=99)]
    assert best_first(ranked(*hosts, states=busy)) == ["host2"]
    assert best_first(ranked(*hosts, states=busy, forced_host="host1")) == ["host1"]


def test_a_rejected_host_keeps_its_place_when_a_choice_is_put_back() -> None:
    packing = replace(PACKING, subset=2)
    ranking = ranked(free(1, 4096), free(2, 4608), free(3, 9000), policy=packing)
    first = ranking.take(2)
    second = ranking.take(2, draw=lambda among: 1)  # host1 is the fullest by now, and is left
    assert first is not None and hosts_of(first)[0] == "host1"
    assert second is not None and hosts_of(second)[0] == "host2"
    ranking.put_back([first])
    assert hosts_of(take(ranking, 3)) == ["host2", "host1", "host3"]


def test_a_used_ranking_is_freed_without_garbage_collection() -> None:
    """With all it found: a batch makes twenty of them, and looking for them cost a tenth of its time."""
    states = [a_state(number, enabled=number != 4) for number in range(6)]
    ranking = ranked(*(free(number, 4096) for number in range(6)), states=states)
    picks = [take(ranking, 3), take(ranking, 3)]
    assert len(alternates(ranking, 2)) == 2
    ranking.put_back(picks)
    assert ranking.verdicts.shortage().removals and ranking.verdicts.removals()
    used_up = weakref.ref(ranking)
    gc.disable()
    try:
        del ranking
        assert used_up() is None
    finally:
        gc.enable()


PLAIN = a_wish()
HOST = the_facts()
LINUX = a_wish(image=Image(name="linux", properties={"os_type": "linux", "hw_vm_mode": "hvm"}))


def preferring(**traits: float) -> Alternative:
    return a_wish(preferred=traits)


def amounts(**amounts: tuple[int, float]) -> Alternative:
    return a_wish(preferred_amounts=amounts)


def row(
    weigher: str, host: HostFacts, alternative: Alternative, value: float, id: str, **options: Any
) -> Any:
    return pytest.param(weigher, options, host, alternative, value, id=f"{weigher}: {id}")


ROWS = [
    row("ram", HOST, PLAIN, 8192, "free"),
    row("ram", the_facts(free={"CUSTOM_BAREMETAL": 1}), PLAIN, 0, "has none"),
    row("cpu", HOST, PLAIN, 8, "free"),
    row("disk", HOST, PLAIN, 80, "free"),
    row("io_ops", the_facts(building=2, sent=1), PLAIN, 3, "its own and those sent there"),
    row("io_ops", HOST, PLAIN, 0, "not reported"),
    row("load", the_facts(load=0.75), PLAIN, 0.75, "reported"),
    row("load", HOST, PLAIN, 0, "not reported"),
    row("build_failure", the_facts(failures=1.5), PLAIN, -1.5, "fading"),
    row("preferred_traits", the_facts(traits=("A", "C")), preferring(A=2.0, B=4.0, C=0.5), 2.5,
     "those it has"),
    row("preferred_traits", HOST, preferring(A=2.0), 0, "none"),
    row("preferred_resources", the_facts(free={"FPGA": 4}), amounts(FPGA=(4, 2.0)), 2.0, "all of it"),
    row("preferred_resources", the_facts(free={"FPGA": 9}), amounts(FPGA=(4, 2.0)), 2.0, "more than it"),
    row("preferred_resources", the_facts(free={"FPGA": 1}), amounts(FPGA=(4, 2.0)), 0.5, "a quarter"),
    row("preferred_resources", HOST, amounts(FPGA=(4, 2.0)), 0, "none of the class"),
    row("preferred_resources", the_facts(free={"FPGA": 4}), amounts(FPGA=(4, -1.0)), -1.0, "avoided"),
    row("image_cached", the_facts(images=("bsd", "linux")), LINUX, 1, "cached"),
    row("image_cached", the_facts(images=("bsd",)), LINUX, 0, "not cached"),
    row("image_cached", the_facts(images=("",)), PLAIN, 0, "no image"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "options", "host", "alternative", "value"), ROWS)
def test_weigher(
    name: str, options: dict[str, Any], host: HostFacts, alternative: Alternative, value: float
) -> None:
    assert WEIGHERS[name](**options).value(OneHost(host), alternative) == value


def test_every_weigher_has_a_row() -> None:
    assert {row.values[0] for row in ROWS} == set(WEIGHERS)
