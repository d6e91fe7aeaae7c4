"""An operator's filters and weighers: names, aliases, options, custom functions; equal requests."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus.requests import Image
from scheduler_worker.core.policy import (
    FILTER_BOOK,
    PROFILES,
    WEIGHERS,
    WEIGHERS_CALLED,
    WEIGHERS_OF_OTHERS,
    BadChoice,
    ChoicePolicy,
    PlacementProfile,
)
from scheduler_worker.core.rule import Alternative, HostFacts, Rule, Weigher
from scheduler_worker.core.rules import RULES, RULES_CALLED, RULES_OF_PLACEMENT
from tests.support.ids import uid
from tests.support.random_hosts import assert_array_agrees, assert_mask_agrees, clouds, random_alternatives
from tests.support.rule_builders import a_wish, the_facts


def rules_of(**chosen: Any) -> list[str]:
    return [rule.name for rule in ChoicePolicy.from_names(**chosen).rules]


def weighers_of(**chosen: Any) -> dict[str, float]:
    return {weigher.name: weigher.multiplier for weigher in ChoicePolicy.from_names(**chosen).weighers}


@pytest.mark.parametrize(
    ("names", "rules"),
    [
        (["io_ops", "up"], ["io_ops", "up"]),
        (["ComputeFilter"], ["up", "enabled"]),
        (["nova.scheduler.filters.compute_filter.ComputeFilter", "up"], ["up", "enabled"]),
        (["AggregateIoOpsFilter", "IoOpsFilter"], ["io_ops"]),
        (["NUMATopologyFilter", "SameHostFilter"], ["same_host"]),
        (["host_is_up", "host_is_enabled", "same_zone"], ["up", "enabled", "zone"]),
        ([], []),
    ],
)
def test_rules_come_in_the_order_of_their_names(names: list[str], rules: list[str]) -> None:
    assert rules_of(filters=names) == rules


def test_a_custom_filter_is_added_and_one_that_an_option_enables_is_removed() -> None:
    def odd(host: HostFacts, alternative: Alternative) -> str | None:
        return None

    assert rules_of(filters=["+mine:odd"], custom={"mine:odd": odd}) == [*FILTER_BOOK.default, "mine:odd"]
    options = {"few_failures": {"max_build_failures": 3}}
    assert rules_of(options=options) == [*FILTER_BOOK.default, "few_failures"]
    assert rules_of(filters=["-few_failures"], options=options) == FILTER_BOOK.default


@pytest.mark.parametrize(
    ("chosen", "why"),
    [
        (
            {"filters": ["+few_failures", "up"]},
            r"'up' has no \+ or -, and other names have: either list all filters",
        ),
        (
            {"filters": ["-few_failures"]},
            "-few_failures: this filter is not enabled; enabled are: up, enabled, zone",
        ),
        ({"filters": ["-zoone"]}, "unknown filter 'zoone', did you mean 'zone'"),
        ({"filters": ["+zoone"]}, "unknown filter 'zoone', did you mean 'zone'"),
        ({"filters": ["+"]}, "unknown filter ''"),
        (
            {"weighers": {"+ram": 1.0, "cpu": 1.0}},
            r"'cpu' has no \+ or -, and other names have: either list all",
        ),
        ({"weighers": {"-ram": 1.0}}, r"-ram: the multiplier 0 disables a weigher: \+ram"),
    ],
)
def test_a_change_of_the_default_names_that_has_no_meaning_is_refused(
    chosen: dict[str, Any], why: str
) -> None:
    with pytest.raises(BadChoice, match=why):
        ChoicePolicy.from_names(**chosen)


def test_the_kernels_filters_and_weighers_of_nova_are_known_by_their_classes() -> None:
    assert len({name for name in RULES_CALLED if name[0].isupper()} | RULES_OF_PLACEMENT.keys()) == 12
    assert len({name for name in WEIGHERS_CALLED if name[0].isupper()} | WEIGHERS_OF_OTHERS.keys()) == 6
    rules_of(filters=[*RULES_CALLED, *RULES_OF_PLACEMENT])
    weighers_of(weighers=[*WEIGHERS_CALLED, *WEIGHERS_OF_OTHERS])


def test_a_profile_sets_multipliers_and_options_that_the_settings_do_not_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quiet = PlacementProfile(
        says="prefers quiet hosts",
        multipliers={"ram": 0.0, "load": -9.0, "of_a_missing_feature": 1.0},
        options={"io_ops": {"max_io_ops_per_host": 3}},
    )
    monkeypatch.setitem(PROFILES, "quiet", quiet)
    policy = ChoicePolicy.from_names(weighers={"+cpu": 2.0}, profile="quiet")
    weighers = {weigher.name: weigher.multiplier for weigher in policy.weighers}
    assert (weighers["ram"], weighers["load"], weighers["cpu"], weighers["disk"]) == (0.0, -9.0, 2.0, 1.0)
    (io_ops,) = [rule for rule in policy.rules if rule.name == "io_ops"]
    assert io_ops.refuses(the_facts(building=3), a_wish()) == "building 3 already, at most 3 at once"
    listed = ChoicePolicy.from_names(weighers={"load": -1.0}, profile="quiet")
    assert [(weigher.name, weigher.multiplier) for weigher in listed.weighers] == [("load", -1.0)]
    with pytest.raises(BadChoice, match="there are: spread"):
        ChoicePolicy.from_names(profile="loud")


def no_thirteen(host: HostFacts, alternative: Alternative) -> str | None:
    return "unlucky" if host.host == "host13" else None


def at_most(*, most: int = 1) -> Rule:
    return Rule("at_most", lambda host, alternative: None if host.building < most else "enough")


def by_number(host: HostFacts, alternative: Alternative) -> float:
    return float(host.host.removeprefix("host"))


def warm(*, metric: str = "t") -> Weigher:
    return Weigher("warm", lambda view, alternative: view.metric(metric), 3.0)


def asker() -> Rule:
    return Rule("asker", lambda host, alternative: None, reads=("instances",))


def reply() -> Rule:
    return Rule("reply", lambda host, alternative: None, reads=("request.reply_to",))


OWN: dict[str, Callable[..., Any]] = {
    "mine:asker": asker,
    "mine:reply": reply,
    "mine:no_thirteen": no_thirteen,
    "mine:at_most": at_most,
    "mine:by_number": by_number,
    "mine:warm": warm,
}


def test_a_custom_rule_is_a_function_or_made_by_a_function_with_options() -> None:
    names, options = ["mine:no_thirteen", "mine:at_most"], {"mine:at_most": {"most": "2"}}
    lucky, few = ChoicePolicy.from_names(names, custom=OWN, options=options).rules
    assert lucky.name == "mine:no_thirteen"
    assert [lucky.refuses(the_facts(number), a_wish()) for number in (12, 13)] == [None, "unlucky"]
    assert [few.refuses(the_facts(building=number), a_wish()) for number in (1, 2)] == [None, "enough"]


@pytest.mark.parametrize(
    ("chosen", "why"),
    [
        (
            {"filters": ["io_op"]},
            "unknown filter 'io_op', did you mean 'io_ops'?; known filters: up, enabled, ",
        ),
        (
            {"filters": ["computefilter"]},
            "unknown filter 'computefilter', did you mean 'ComputeFilter'?; known",
        ),
        ({"filters": ["luck"]}, "unknown filter 'luck'; known filters: up, enabled, zone, "),
        ({"weighers": {"luck": 1.0}}, "unknown weigher 'luck'; known weighers: ram, cpu, "),
        ({"filters": ["ram"]}, "unknown filter 'ram'"),
        ({"filters": ["mine:no_thirteen"]}, "unknown filter 'mine:no_thirteen'"),
        ({"options": {"io_op": {}}}, "there is no rule or weigher 'io_op', did you mean 'io_ops'?"),
        (
            {"options": {"io_ops": {"max_io_ops": 3}}},
            "no such option, did you mean 'max_io_ops_per_host'?; there are: for_nova, max_io_ops_per_host",
        ),
        ({"options": {"up": {"really": True}}}, "no such option; it has none"),
        ({"options": {"io_ops": {"max_io_ops_per_host": -1}}}, "-1 is less than 0"),
        ({"options": {"few_failures": {"max_build_failures": "-5"}}}, "-5 is less than 0"),
        ({"max_builds": -2}, "-2 is less than 0"),
        ({"options": {"mine:no_thirteen": {"most": 3}}, "custom": OWN}, "no such option; it has none"),
        ({"options": {"io_ops": {"max_io_ops_per_host": "x"}}}, "'x': Expected `int`, got `str`"),
        ({"filters": ["mine:warm"], "custom": OWN}, "'mine:warm' makes a Weigher, not a Rule"),
        ({"weighers": ["mine:at_most"], "custom": OWN}, "'mine:at_most' makes a Rule, not a Weigher"),
        (
            {"filters": ["mine:asker"], "custom": OWN},
            "'mine:asker' reads instances, which belongs to one request",
        ),
        ({"filters": ["mine:reply"], "custom": OWN}, "'mine:reply' reads request.reply_to"),
    ],
)
def test_unknown_names_and_invalid_options_are_refused(chosen: dict[str, Any], why: str) -> None:
    with pytest.raises(BadChoice) as refused:
        ChoicePolicy.from_names(**chosen)
    assert str(refused.value).startswith(why)


def kinds(policy: ChoicePolicy, *alternatives: Alternative) -> int:
    return len({policy.kind(alternative) for alternative in alternatives})


FIRST, SECOND = uid(1, "c"), uid(2, "c")


@pytest.mark.parametrize(
    ("fields", "other", "enabled"),
    [
        ({"image": None}, {"image": Image(name="i")}, "image_cached"),
        ({"zone": "a"}, {"zone": "b"}, "zone"),
        ({"preferred": {"A": 1.0}}, {}, "preferred_traits"),
        ({"preferred_amounts": {"A": (1, 1.0)}}, {}, "preferred_resources"),
        ({"same": frozenset([FIRST])}, {"same": frozenset([SECOND])}, ""),
        ({"current_roots": frozenset([FIRST])}, {}, ""),
        ({"forced_host": "host1"}, {}, ""),
        ({"notes": ("odd",)}, {}, ""),
        ({"alternative_index": 1}, {}, ""),
        ({"is_external": True}, {}, "IoOpsFilter"),
        ({"metadata": {"a": "b"}}, {}, "mine:no_thirteen"),
    ],
)
def test_fields_that_a_rule_reads_distinguish_requests(fields: Any, other: Any, enabled: str) -> None:
    weighers = [enabled] if enabled in WEIGHERS else []
    filters = [enabled] if enabled and not weighers else []
    policy = ChoicePolicy.from_names(filters, weighers, custom=OWN)
    assert kinds(policy, a_wish(**fields), a_wish(**other)) == 2


OPTIONS: dict[str, list[dict[str, Any]]] = {"io_ops": [{}, {"max_io_ops_per_host": 1}, {"for_nova": True}]}
MASKED = [name for name in RULES if RULES[name](**OPTIONS.get(name, [{}])[-1]).admits is not None]


@pytest.mark.parametrize("name", MASKED)
@settings(max_examples=40, deadline=None)
@given(cloud=clouds(), alternative=random_alternatives(), data=st.data())
def test_a_rules_mask_agrees_with_its_reasons(
    name: str, cloud: list[HostFacts], alternative: Alternative, data: st.DataObject
) -> None:
    rule = RULES[name](**data.draw(st.sampled_from(OPTIONS.get(name, [{}]))))
    assert_mask_agrees(rule, cloud, alternative)


@pytest.mark.parametrize("name", WEIGHERS)
@settings(max_examples=40, deadline=None)
@given(cloud=clouds(), alternative=random_alternatives())
def test_a_weighers_array_agrees_with_single_hosts(
    name: str, cloud: list[HostFacts], alternative: Alternative
) -> None:
    assert_array_agrees(WEIGHERS[name](), cloud, alternative)
