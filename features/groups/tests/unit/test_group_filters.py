"""The filters and weighers of server groups."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from features.groups import filters
from features.groups.messages import GroupPolicy
from features.groups.tests.support.orders_in_groups import joining
from scheduler_worker.core.extension import Alternative, HostFacts, OneHost, Rule, Weigher
from scheduler_worker.extension import ChoicePolicy
from tests.support.ids import uid
from tests.support.rule_builders import a_wish, seen_at_once, the_facts

HERE, ELSEWHERE = uid(1, "c"), uid(2, "c")
HOST = the_facts()
PLAIN = a_wish()

# filter → what the case is, the request, and why the host HERE is refused
CASES: dict[str, list[tuple[str, Alternative, str | None]]] = {
    "server_group_anti_affinity": [
        ("no group", PLAIN, None),
        ("one there", joining("anti-affinity", {HERE: 1}), "1 of server group web there, at most 1"),
        ("two allowed", joining("anti-affinity", {HERE: 1}, most=2), None),
        ("it is there itself", joining("anti-affinity", {HERE: 1}, current_roots=frozenset([HERE])), None),
        ("soft", joining("soft-anti-affinity", {HERE: 3}), None),
    ],
    "server_group_affinity": [
        ("no group", PLAIN, None),
        ("the first of it", joining("affinity", {}), None),
        ("others elsewhere", joining("affinity", {ELSEWHERE: 1}), "none of server group web there"),
        ("soft", joining("soft-affinity", {ELSEWHERE: 1}), None),
    ],
}


def filter_named(name: str) -> Rule:
    rule = getattr(filters, name)()
    assert isinstance(rule, Rule)
    return rule


@pytest.mark.parametrize(
    ("name", "alternative", "why"),
    [pytest.param(name, *row, id=f"{name}: {case}") for name, rows in CASES.items() for case, *row in rows],
)
def test_a_filter_accepts_a_host_or_gives_the_reason(name: str, alternative: Alternative, why: str) -> None:
    assert filter_named(name).refuses(HOST, alternative) == why


@pytest.mark.parametrize(
    ("name", "policy", "value"),
    [
        ("soft_affinity", "soft-affinity", 2),
        ("soft_affinity", "soft-anti-affinity", 0),
        ("soft_anti_affinity", "soft-anti-affinity", -2),
        ("soft_anti_affinity", "anti-affinity", 0),
    ],
)
def test_soft_weighers_count_members(name: str, policy: GroupPolicy, value: float) -> None:
    weigher: Weigher = getattr(filters, name)()
    assert weigher.value(OneHost(HOST), joining(policy, {HERE: 2})) == value


@pytest.mark.parametrize("policy", ["affinity", "anti-affinity", "soft-affinity", "soft-anti-affinity"])
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_arrays_agree_with_single_hosts(policy: GroupPolicy, data: st.DataObject) -> None:
    roots = st.integers(0, 6).map(lambda number: uid(number, "c"))
    members = data.draw(st.dictionaries(roots, st.integers(1, 3), max_size=3))
    alternative = joining(
        policy,
        members,
        data.draw(st.integers(1, 2)),
        current_roots=frozenset(data.draw(st.sets(roots, max_size=2))),
    )
    hosts: list[HostFacts] = [the_facts(number) for number in range(data.draw(st.integers(1, 5)))]
    every, each = seen_at_once(hosts)
    for name in CASES:
        rule = filter_named(name)
        assert rule.admits is not None
        if rule.concerns(alternative):
            accepted = [rule.refuses(facts, alternative) is None for facts in each]
            assert np.broadcast_to(rule.admits(every, alternative), len(each)).tolist() == accepted
    for weigher in (filters.soft_affinity(), filters.soft_anti_affinity()):
        values = np.broadcast_to(weigher.value(every, alternative), len(each)).tolist()
        assert values == [float(weigher.value(OneHost(facts), alternative)) for facts in each]


def test_the_names_of_nova_are_known() -> None:
    policy = ChoicePolicy.from_names(
        ["ServerGroupAntiAffinityFilter", "nova.scheduler.filters.affinity_filter.ServerGroupAffinityFilter"],
        {"ServerGroupSoftAffinityWeigher": 2.0, "ServerGroupSoftAntiAffinityWeigher": 3.0},
    )
    assert [rule.name for rule in policy.rules] == ["server_group_anti_affinity", "server_group_affinity"]
    assert [weigher.name for weigher in policy.weighers] == ["soft_affinity", "soft_anti_affinity"]
