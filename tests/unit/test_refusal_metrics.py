"""Metrics of claims that placement refused."""

from prometheus_client import REGISTRY

from bus.claims import Refused, RuleRefused
from scheduler_worker.refusals import count_claims


def test_a_claim_that_a_rule_refuses_counts_by_its_code() -> None:
    name, labels = "berth_scheduler_choices_refused_total", {"why": "licences"}
    before = REGISTRY.get_sample_value(name, labels) or 0.0
    violated = RuleRefused(rule="licences", code="licences", why="p: no licence is left")
    count_claims([Refused(refusals=(violated,))])
    assert REGISTRY.get_sample_value(name, labels) == before + 1
