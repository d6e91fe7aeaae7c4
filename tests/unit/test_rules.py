"""One row for each filter: accepted hosts, and the reasons of rejected ones."""

from typing import Any

import pytest
from msgspec.structs import replace

from scheduler_worker.core.rule import Alternative, HostFacts
from scheduler_worker.core.rules import RULES
from tests.support.ids import uid
from tests.support.rule_builders import a_wish, an_aggregate, the_facts
from tests.support.rule_cases import RuleCases, assert_verdict, misses_no_field, parameters

HERE, ELSEWHERE = uid(1, "c"), uid(2, "c")
PLAIN = a_wish()
IN_EVERY_CLASS = ("same_host", "different_host")  # their hints distinguish classes without `reads`


HOST = the_facts()

# Rule → what the case is, the host, the request, why the host is refused, and options of the rule
CASES: RuleCases = {
    "up": [
        ("heard of", HOST, PLAIN, None),
        ("silent", the_facts(down="down: silent"), PLAIN, "down: silent"),
    ],
    "enabled": [
        ("not reported: enabled", HOST, PLAIN, None),
        ("disabled", the_facts(enabled=False), PLAIN, "disabled"),
        ("for a reason", the_facts(enabled=False, why_disabled="disk"), PLAIN, "disabled: disk"),
        ("forced down", the_facts(forced_down=True), PLAIN, "forced down by an operator"),
        ("forced down in placement, however alive it is", the_facts(traits=("CUSTOM_BERTH_FORCED_DOWN",)),
         PLAIN, "forced down by an operator"),
        ("disabled as Nova does it", the_facts(traits=("COMPUTE_STATUS_DISABLED",)), PLAIN, "disabled"),
    ],
    "zone": [
        ("any zone will do", the_facts(), PLAIN, None),
        ("in none", the_facts(), a_wish(zone="b"), "in zone '', not in 'b'"),
        ("by an aggregate", the_facts(1, an_aggregate(availability_zone="b")), a_wish(zone="b"), None),
        ("another by an aggregate", the_facts(1, an_aggregate(availability_zone="a")), a_wish(zone="b"),
         "in zone 'a', not in 'b'"),
    ],
    "io_ops": [
        ("seven builds", the_facts(building=7), PLAIN, None),
        ("eight builds", the_facts(building=8), PLAIN, "building 8 already, at most 8 at once"),
        ("ours count", the_facts(building=6, sent=2), PLAIN, "building 8 already, at most 8 at once"),
        (
            "the least of its aggregates",
            the_facts(
                1,
                an_aggregate(1, max_io_ops_per_host="4"),
                an_aggregate(2, max_io_ops_per_host="2"),
                building=2,
            ),
            PLAIN,
            "building 2 already, at most 2 at once",
        ),
        ("what an aggregate says is no number",
         the_facts(1, an_aggregate(max_io_ops_per_host="lots"), building=8), PLAIN,
         "building 8 already, at most 8 at once"),
        ("a build of Nova", the_facts(building=8), a_wish(is_external=True), None),
        ("for Nova, too", the_facts(building=8), a_wish(is_external=True),
         "building 8 already, at most 8 at once", {"for_nova": True}),
    ],
    "few_failures": [
        ("two builds failed, and one long ago", the_facts(failures=2.4), PLAIN, None),
        ("three failed", the_facts(failures=3.0), PLAIN,
         "builds failed there recently (3.0, fading): left alone from 2.5"),
    ],
    "same_host": [
        ("not asked for", HOST, PLAIN, None),
        ("one of them there", HOST, a_wish(same=frozenset([HERE, ELSEWHERE])), None),
        ("they are elsewhere", HOST, a_wish(same=frozenset([ELSEWHERE])),
         "none of the instances of same_host is there"),
        ("they are nowhere", HOST, a_wish(same=frozenset()), "none of the instances of same_host is there"),
    ],
    "different_host": [
        ("not asked for", HOST, PLAIN, None),
        ("they are elsewhere", HOST, a_wish(different=frozenset([ELSEWHERE])), None),
        ("one of them there", HOST, a_wish(different=frozenset([HERE])),
         "an instance of different_host is there"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(("name", "host", "alternative", "why", "options"), parameters(CASES))
def test_a_rule_admits_a_host_or_gives_the_reason(
    name: str, host: HostFacts, alternative: Alternative, why: str | None, options: dict[str, Any]
) -> None:
    assert_verdict(RULES[name](**options), host, alternative, why)


def test_every_rule_has_an_admitted_and_a_refused_case() -> None:
    seen = {(name, row[3] is None) for name, rows in CASES.items() for row in rows}
    assert seen == {(name, admits) for name in RULES for admits in (True, False)}


def test_the_zone_rule_is_skipped_if_placement_filtered_by_zone() -> None:
    asked = a_wish(zone="b")
    rule = RULES["zone"]()
    assert rule.concerns is not None
    assert rule.concerns(asked)
    by_placement = Alternative(asked.request, asked.flavor, replace(asked.question, zone="b"))
    assert not rule.concerns(by_placement)


@pytest.mark.parametrize("name", RULES)
def test_a_rule_reads_only_what_it_declares(name: str) -> None:
    assert misses_no_field(RULES[name], name, CASES) or name in IN_EVERY_CLASS
