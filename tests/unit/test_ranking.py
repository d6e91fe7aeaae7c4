"""The order of hosts: the best first, full hosts, alternates, and the record."""

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


def test_one_of_the_best_hosts_is_drawn_if_configured() -> None:
    policy = ChoicePolicy(subset=3)
    hosts = [free(number, 1024 * number) for number in range(1, 10)]

    def winner(draw: int) -> str:
        pick = ranked(*hosts, policy=policy).take(2, draw=lambda among: draw % among)
        assert pick is not None and pick.record.subset == 3
        return pick.choices[0].host

    assert [winner(draw) for draw in range(4)] == ["host9", "host8", "host7", "host9"]


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


PACKING = ChoicePolicy.from_names(weighers={"ram": -1.0})


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
