"""Tests of filters by tables of cases."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from bus.requests import Flavor
from scheduler_worker.core.policy import ChoicePolicy
from scheduler_worker.core.rule import Alternative, HostFacts, Rule
from tests.support.rule_builders import a_wish

# Filter → what the case is, the host, the request, why the host is refused, and options of the filter
RuleCases = Mapping[str, Sequence[tuple[Any, ...]]]


def parameters(cases: RuleCases) -> list[Any]:
    return [
        pytest.param(name, *row, *([{}] if len(row) == 3 else []), id=f"{name}: {case}")
        for name, rows in cases.items()
        for case, *row in rows
    ]


def assert_verdict(rule: Rule, host: HostFacts, alternative: Alternative, why: str | None) -> None:
    assert rule.refuses(host, alternative) == why
    assert rule.concerns is None or rule.concerns(alternative) or why is None


def misses_no_field(make: Callable[..., Rule], name: str, cases: RuleCases) -> bool:
    """Fail if a filter misses a field in `reads`: requests of one class share an evaluation, so some would be
    misplaced. Return whether the cases would notice a missing field, or the filter reads none.
    """
    rows = cases[name]
    hosts, noticed = [row[1] for row in rows], 0
    for options in [row[4] if len(row) > 4 else {} for row in rows]:
        rule = make(**options)
        assert not _classes_judged_differently(rule, hosts, cases)
        noticed += _classes_judged_differently(dataclasses.replace(rule, reads=()), hosts, cases)
    return bool(noticed) or not rule.reads


def _classes_judged_differently(rule: Rule, hosts: list[HostFacts], cases: RuleCases) -> int:
    """Return how many alternatives share the class of another one that the filter judges differently."""
    policy, verdicts, differ = ChoicePolicy(rules=(rule,), weighers=()), dict[Any, list[str | None]](), 0
    large = a_wish(flavor=Flavor(name="large", vcpus=1))
    for alternative in [large, *(row[2] for rows in cases.values() for row in rows)]:
        verdict = [rule.refuses(host, alternative) for host in hosts]
        differ += verdicts.setdefault(policy.kind(alternative), verdict) != verdict
    return differ
