"""Metrics of refusals because of a topology, by level."""

import pytest
from prometheus_client import REGISTRY

from bus.claims import Refused, RuleRefused
from bus.decisions import Decision
from bus.messages import BuildUnplaceable
from features.groups.constraints import DomainConstraints
from features.topology import refusals
from scheduler_worker.refusals import count_claims
from tests.support.scheduler_builders import a_request


def counted(level: str) -> float:
    return REGISTRY.get_sample_value("berth_scheduler_topology_refusals_total", {"level": level}) or 0.0


def refused(topology: DomainConstraints | None = None) -> None:
    request = a_request(1, topology=topology or DomainConstraints())
    end = BuildUnplaceable(
        request=request.request, instances=(), reason="", decision=Decision(code="topology")
    )
    refusals.count_unplaceable([(request, end)])


def test_a_claim_that_a_rule_refuses_counts_by_its_code() -> None:
    name, labels = "berth_scheduler_choices_refused_total", {"why": "topology"}
    before = REGISTRY.get_sample_value(name, labels) or 0.0
    violated = RuleRefused(rule="topology", code="topology", why="p: pack rack")
    count_claims([Refused(refusals=(violated,))])
    assert REGISTRY.get_sample_value(name, labels) == before + 1


def test_levels_of_requests_make_a_limited_number_of_label_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "_levels", set[str]())
    monkeypatch.setattr(refusals, "MOST_LEVELS", 2)
    before = counted("other")
    for level in ("rack", "row", "one", "two", "rack"):
        refused(DomainConstraints(pack=level))
    assert counted("other") == before + 2
