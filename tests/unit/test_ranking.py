"""The order of hosts: who comes first, how ties break, what taking one changes, and the alternates."""

from collections import Counter
from collections.abc import Sequence
from copy import deepcopy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.messages import BuildRequested
from bus.vocabulary import Resources
from scheduler_worker import ChoicePolicy
from scheduler_worker.core.host import Host
from scheduler_worker.core.ranking import Pick, Ranking, rank
from scheduler_worker.core.weighers import free_ram, free_vcpu
from tests.support.scheduler_builders import METAL, a_candidate, a_host, a_request, a_state

ONE: Resources = {"VCPU": 1, "MEMORY_MB": 1024}


def free(number: int, ram: int, vcpus: int = 8, cell: str = "cell1") -> Host:
    return Host(a_candidate(number, asked=ONE, free={"VCPU": vcpus, "MEMORY_MB": ram}, cell=cell))


def ranked(*hosts: Host, policy: ChoicePolicy | None = None, seed: str = "s", **request: object) -> Ranking:
    return rank(a_request(**request), hosts, policy or ChoicePolicy(), seed)  # type: ignore[arg-type]


def names(hosts: Sequence[Host]) -> list[str]:
    return [host.candidate.host for host in hosts]


def take(ranking: Ranking, several: int = 1, avoid: Sequence[str] = ()) -> Pick:
    pick = ranking.take(several, avoid)
    assert pick is not None
    return pick


def hosts_of(pick: Pick) -> list[Host]:
    return list(dict.fromkeys(host for host, _ in pick.choices))


def best_first(ranking: Ranking) -> list[Host]:
    """Who is left, in the order of now."""
    return hosts_of(take(deepcopy(ranking), several=len(ranking.hosts)))


def test_best_first() -> None:
    ranking = ranked(free(1, 2048), free(2, 8192), free(3, 4096))
    assert names(best_first(ranking)) == ["host2", "host3", "host1"]


def test_a_loaded_host_comes_after_an_idle_one() -> None:
    ranking = ranked(a_host(1, load=0.9), a_host(2, load=0.1), a_host(3, load=0.5))
    assert names(best_first(ranking)) == ["host2", "host3", "host1"]


def test_ties_break_the_same_way_for_the_same_seed_and_otherwise_for_others() -> None:
    def order(seed: str) -> list[str]:
        return names(best_first(ranked(*(free(number, 4096) for number in range(20)), seed=seed)))

    assert order("one") == order("one")
    assert order("one") != order("two")
    assert sorted(order("one")) == sorted(order("two"))


def test_the_winner_is_recorded_with_the_scores_it_won_by() -> None:
    pick = take(ranked(free(1, 4096, 4), free(2, 8192, 8)))
    assert names(hosts_of(pick)) == ["host2"]
    assert pick.scores == {"free_ram": 1, "free_vcpu": 1, "load": 0, "builds_in_flight": 0, "total": 2}


@pytest.mark.parametrize("policy", [ChoicePolicy(), ChoicePolicy(weighers=())], ids=["weighed", "all alike"])
@pytest.mark.parametrize("metal", [False, True])
def test_equal_builds_on_as_many_equal_hosts_land_one_each(policy: ChoicePolicy, metal: bool) -> None:
    shape: dict[str, Resources] = {"asked": ONE}
    if metal:
        shape = {"asked": {"CUSTOM_BAREMETAL": 1}, "free": {"CUSTOM_BAREMETAL": 1}}
    hosts = [Host(a_candidate(number, **shape)) for number in range(30)]  # type: ignore[arg-type]
    ranking = rank(a_request(flavor=METAL) if metal else a_request(), hosts, policy, "s")
    assert set(Counter(take(ranking).host.root for _ in range(30)).values()) == {1}
    assert (ranking.take() is None) == metal


def test_what_is_taken_counts_as_used_until_nothing_is_left() -> None:
    ranking = ranked(free(1, 2048), free(2, 4096))
    order = [names(hosts_of(take(ranking)))[0] for _ in range(6)]
    assert order[:4] == ["host2", "host2", "host1", "host2"]
    assert Counter(order) == {"host1": 2, "host2": 4}
    assert ranking.take() is None


def test_a_host_that_reaches_its_limit_of_builds_is_not_handed_out_again() -> None:
    ranking = ranked(free(1, 8192), policy=ChoicePolicy.from_names(max_builds=2))
    assert [names(hosts_of(take(ranking))) for _ in range(2)] == [["host1"], ["host1"]]
    assert ranking.take() is None


def test_the_next_best_come_along_untaken() -> None:
    ranking = ranked(free(1, 2048), free(2, 8192), free(3, 4096))
    assert names(hosts_of(take(ranking, several=3))) == ["host2", "host3", "host1"]
    assert [host.chosen for host in ranking.hosts] == [0, 1, 0]


def test_hosts_to_avoid_come_only_when_there_is_no_other() -> None:
    ranking = ranked(free(1, 2048), free(2, 8192))
    second = ranking.hosts[1].root
    assert names(hosts_of(take(ranking, 3, [second]))) == ["host1"]
    assert names(hosts_of(take(ranked(free(2, 8192)), 3, [second]))) == ["host2"]


def test_what_is_put_back_was_never_taken() -> None:
    ranking = ranked(free(1, 1024), free(2, 8192), free(3, 4096))
    before = names(best_first(ranking))
    picks = [take(ranking) for _ in range(5)]
    ranking.put_back(picks)
    assert names(best_first(ranking)) == before
    assert ranking.handed_out == 0
    assert names(hosts_of(take(ranking))) == before[:1]


# Alternates


def test_alternates_are_the_next_best_of_the_same_cell() -> None:
    ranking = ranked(free(1, 8192), free(2, 6000, cell="cell2"), free(3, 5000), free(4, 4000), free(5, 3000))
    chosen = take(ranking).host
    assert names(ranking.alternates("cell1", 2, {chosen.root})) == ["host3", "host4"]
    assert names(ranking.alternates("cell2", 2, {chosen.root})) == ["host2"]
    assert ranking.alternates("cell1", 0, set()) == []


def test_alternates_leave_out_every_host_chosen_for_the_request() -> None:
    ranking = ranked(*(free(number, 8192 - number) for number in range(4)))
    chosen = {take(ranking).host.root for _ in range(2)}
    assert names(ranking.alternates("cell1", 5, chosen)) == ["host2", "host3"]


def test_alternates_of_many_requests_spread_too() -> None:
    ranking = ranked(*(free(number, 8192) for number in range(10)))
    named = Counter(host.root for _ in range(5) for host in ranking.alternates("cell1", 2, ()))
    assert set(named.values()) == {1}
    assert all(host.chosen == 0 for host in ranking.hosts)


def test_an_alternate_named_often_counts_as_fuller() -> None:
    ranking = ranked(free(1, 4096), free(2, 4000), free(3, 2000))
    named = [names(ranking.alternates("cell1", 1, ()))[0] for _ in range(4)]
    assert named == ["host1", "host2", "host1", "host2"]


# The record


def test_removals_are_counted_by_rule_and_near_misses_named() -> None:
    ranking = ranked(
        free(1, 8192),
        a_host(2, down="down: silent"),
        Host(a_candidate(3), a_state(enabled=False)),
        a_host(4, zone="elsewhere"),
        Host(a_candidate(5, zone="here", asked=ONE, free=ONE), taken=ONE),
        Host(a_candidate(6, agent="", zone="here")),
        Host(a_candidate(7, zone="here")),
        zone="here",
    )
    assert ranking.removed == {
        "has_agent": 1,
        "host_is_up": 1,
        "host_is_enabled": 1,
        "same_zone": 2,
        "already chosen by others of this batch": 1,
    }
    assert names(best_first(ranking)) == ["host7"]
    assert [(miss.host, miss.lacks) for miss in ranking.nearest] == [
        ("host5", "room: chosen by others a moment ago"),
        ("host1", "in zone '', not in 'here'"),
        ("host4", "in zone 'elsewhere', not in 'here'"),
        ("host3", "disabled"),
        ("host2", "down: silent"),
    ]


@pytest.mark.parametrize(
    ("host", "passes"),
    [
        (a_host(building=8), True),
        (Host(a_candidate(asked=ONE, free=ONE), taken=ONE), True),
        (a_host(down="down: silent"), True),
        (a_host(enabled=False), False),
        (a_host(down="down: silent", enabled=False), False),
        (a_host(building=8, enabled=False), False),
    ],
    ids=["busy", "chosen a moment ago", "down", "disabled", "down and disabled", "busy and disabled"],
)
def test_some_obstacles_pass_by_themselves(host: Host, passes: bool) -> None:
    assert ranked(host).may_pass == passes


# Policies


def test_an_operator_names_filters_and_weighers() -> None:
    policy = ChoicePolicy.from_names(["same_zone"], {"free_ram": -1.0})
    assert [filter_.__name__ for filter_ in policy.filters] == ["same_zone"]
    assert [(weight.weigher, weight.multiplier) for weight in policy.weighers] == [(free_ram, -1.0)]
    assert names(best_first(ranked(free(1, 2048), free(2, 8192), policy=policy))) == ["host1", "host2"]
    assert [weight.weigher for weight in ChoicePolicy.from_names(weighers=["free_vcpu"]).weighers] == [
        free_vcpu
    ]
    assert len(ChoicePolicy.from_names().filters) == len(ChoicePolicy().filters)
    assert ChoicePolicy.from_names().weighers == ChoicePolicy().weighers


@pytest.mark.parametrize(
    ("filters", "weighers", "sentence"),
    [
        (
            ["same_zone", "ram"],
            None,
            "unknown filter 'ram'; known filters: "
            "host_is_up, host_is_enabled, same_zone, few_builds_in_flight",
        ),
        (None, ["cpu"], "unknown weigher 'cpu'; known weighers: free_ram, free_vcpu, load, builds_in_flight"),
        (None, {"cpu": 2.0}, "unknown weigher 'cpu'; known weighers"),
    ],
)
def test_an_unknown_name_is_refused_with_the_known_ones(
    filters: list[str] | None, weighers: list[str] | None, sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        ChoicePolicy.from_names(filters, weighers)


def test_a_filter_of_ones_own_takes_part() -> None:
    def even_hosts(host: Host, request: BuildRequested) -> str | None:
        return None if int(host.candidate.host[4:]) % 2 == 0 else "an odd host"

    ranking = ranked(*(free(number, 4096) for number in range(4)), policy=ChoicePolicy(filters=(even_hosts,)))
    assert sorted(names(best_first(ranking))) == ["host0", "host2"]
    assert ranking.removed == {"even_hosts": 2}


@given(
    figures=st.lists(st.tuples(st.integers(1, 16), st.integers(1024, 65536)), min_size=1, max_size=20),
    seed=st.text(max_size=5),
    takes=st.integers(0, 30),
)
def test_the_same_hosts_and_seed_give_the_same_choices(
    figures: list[tuple[int, int]], seed: str, takes: int
) -> None:
    def choices() -> list[list[str] | None]:
        hosts = [free(n, ram, vcpus) for n, (vcpus, ram) in enumerate(figures)]
        ranking = ranked(*hosts, policy=ChoicePolicy.from_names(max_builds=1000), seed=seed)
        picks = [ranking.take(3) for _ in range(takes)]
        return [names(hosts_of(pick)) if pick else None for pick in picks]

    first = choices()
    assert first == choices()
    room = sum(min(vcpus, ram // 1024) for vcpus, ram in figures)
    handed_out = Counter(pick[0] for pick in first if pick)
    assert handed_out.total() == min(takes, room)
    for number, (vcpus, ram) in enumerate(figures):
        assert handed_out[f"host{number}"] <= min(vcpus, ram // 1024)
