"""An operator's filters and weighers: names, aliases, options, custom functions; equal requests."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from bus.aggregates import Aggregate
from bus.host_health import DISABLED, FORCED_DOWN
from bus.requests import Flavor, Hints, Image
from scheduler_worker.core.policy import (
    FILTER_BOOK,
    WEIGHERS,
    WEIGHERS_CALLED,
    WEIGHERS_OF_OTHERS,
    BadChoice,
    ChoicePolicy,
)
from scheduler_worker.core.rule import Alternative, HostFacts, OneHost, Rule, Weigher
from scheduler_worker.core.rules import RULES, RULES_CALLED, RULES_OF_PLACEMENT
from tests.support.ids import uid
from tests.support.rule_builders import a_wish, an_aggregate, seen_at_once, the_facts
from tests.support.scheduler_builders import a_request


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
        (["NUMATopologyFilter", "JsonFilter"], ["json"]),
        (["host_is_up", "host_is_enabled", "same_zone"], ["up", "enabled", "zone"]),
        ([], []),
    ],
)
def test_rules_come_in_the_order_of_their_names(names: list[str], rules: list[str]) -> None:
    assert rules_of(filters=names) == rules


@pytest.mark.parametrize(
    ("names", "rules"),
    [
        (["+few_failures"], [*FILTER_BOOK.default, "few_failures"]),
        (["-zone"], [name for name in FILTER_BOOK.default if name != "zone"]),
        (["-ComputeFilter", "+json", "+zone"], [*FILTER_BOOK.default[2:], "json"]),
        (["-NUMATopologyFilter"], FILTER_BOOK.default),
    ],
)
def test_filters_are_added_to_the_default_ones_and_removed_from_them(
    names: list[str], rules: list[str]
) -> None:
    assert rules_of(filters=names) == rules


def test_a_custom_filter_is_added_and_one_that_an_option_enables_is_removed() -> None:
    def odd(host: HostFacts, alternative: Alternative) -> str | None:
        return None

    assert rules_of(filters=["+mine:odd"], custom={"mine:odd": odd}) == [*FILTER_BOOK.default, "mine:odd"]
    options = {"num_instances": {"max_instances_per_host": 3}}
    assert rules_of(options=options) == [*FILTER_BOOK.default, "num_instances"]
    assert rules_of(filters=["-num_instances"], options=options) == FILTER_BOOK.default


@pytest.mark.parametrize(
    ("chosen", "why"),
    [
        ({"filters": ["+json", "up"]}, r"'up' has no \+ or -, and other names have: either list all filters"),
        ({"filters": ["-json"]}, "-json: this filter is not enabled; enabled are: up, enabled, zone"),
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


def test_weighers_are_added_to_the_default_ones_and_their_multipliers_changed() -> None:
    def quiet(host: HostFacts, alternative: Alternative) -> float:
        return 1.0

    changes = {"+RAMWeigher": -2.0, "+mine:quiet": 0.5, "+load": 0.0}
    expected = weighers_of() | {"ram": -2.0, "load": 0.0, "mine:quiet": 0.5}
    assert weighers_of(weighers=changes, custom={"mine:quiet": quiet}) == expected


def test_every_filter_and_weigher_of_nova_is_known_by_its_class() -> None:
    assert len({name for name in RULES_CALLED if name[0].isupper()} | RULES_OF_PLACEMENT.keys()) == 25
    assert len({name for name in WEIGHERS_CALLED if name[0].isupper()} | WEIGHERS_OF_OTHERS.keys()) == 11
    rules_of(filters=[*RULES_CALLED, *RULES_OF_PLACEMENT])
    weighers_of(weighers=[*WEIGHERS_CALLED, *WEIGHERS_OF_OTHERS])


@pytest.mark.parametrize(
    ("names", "weighers"),
    [
        (["cpu"], {"cpu": 1}),
        ({"ram": -2.0, "CPUWeigher": 3.0}, {"ram": -2, "cpu": 3}),
        ({"nova.scheduler.weights.ram.RAMWeigher": 0.5, "CrossCellWeigher": 1.0}, {"ram": 0.5}),
        ({"free_ram": 2.0, "builds_in_flight": -3.0}, {"ram": 2, "io_ops": -3}),
        ({"image_properties": 1.0}, {"image_properties": 1}),
        ({"image_properties": 0.0}, {}),
        ({"num_instances": 0.0}, {"num_instances": 0}),  # aggregates may turn it on
    ],
)
def test_weighers_have_multipliers(names: Any, weighers: dict[str, float]) -> None:
    assert weighers_of(weighers=names) == weighers


def test_options_are_converted_to_their_types() -> None:
    options = {
        "io_ops": {"max_io_ops_per_host": "2"},
        "isolated_hosts": {
            "isolated_hosts": "host1, host2",
            "restrict_isolated_hosts_to_isolated_images": "false",
        },
    }
    policy = ChoicePolicy.from_names(["io_ops", "isolated_hosts"], options=options)
    io_ops, isolated = policy.rules
    assert io_ops.refuses(the_facts(building=2), a_wish()) == "building 2 already, at most 2 at once"
    assert isolated.refuses(the_facts(), a_wish()) is None


def test_options_are_split_between_rule_and_weigher_of_a_name() -> None:
    options = {
        "image_properties": {
            "image_properties_default_architecture": "aarch64",
            "image_props_weight_setting": {"os_type": 2},
        }
    }
    policy = ChoicePolicy.from_names(["image_properties"], {"image_properties": 1.0}, options=options)
    alternative = a_wish(image=Image(name="i", properties={"os_type": "bsd"}))
    host = the_facts(architecture="x86_64", image_properties={"os_type=bsd": 3})
    assert policy.rules[0].refuses(host, alternative) == "the image needs architecture aarch64; it has x86_64"
    assert policy.weighers[0].value(OneHost(host), alternative) == 6


@pytest.mark.parametrize(
    ("options", "rules"),
    [
        ({}, ["up"]),
        ({"weight_setting": {}}, ["up"]),
        ({"weight_setting": {"t": 1.0}}, ["up", "metrics"]),
        ({"weight_setting": {"t": 1.0}, "required": False}, ["up"]),
    ],
)
def test_metrics_that_are_required_are_a_rule(options: dict[str, Any], rules: list[str]) -> None:
    assert rules_of(filters=["up"], options={"metrics": options}) == rules


@pytest.mark.parametrize(
    ("weighers", "packs"),
    [
        (None, False),
        ({"ram": -1.0}, True),
        ({"cpu": 1.0, "disk": -0.5}, True),
        ({"io_ops": -1.0, "ram": 1.0}, False),
    ],
)
def test_negative_multipliers_pack(weighers: dict[str, float] | None, packs: bool) -> None:
    assert ChoicePolicy.from_names(weighers=weighers).packs == packs


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


def test_a_custom_weigher_is_a_function_or_made_by_a_function_with_options() -> None:
    (weigher,) = ChoicePolicy.from_names(weighers={"mine:by_number": -1.0}, custom=OWN).weighers
    assert (weigher.value(OneHost(the_facts(7)), a_wish()), weigher.multiplier) == (7, -1)
    options = {"mine:warm": {"metric": "u"}}
    (weigher,) = ChoicePolicy.from_names(weighers=["mine:warm"], custom=OWN, options=options).weighers
    assert (weigher.value(OneHost(the_facts(metrics={"u": 4.0})), a_wish()), weigher.multiplier) == (4, 3)


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
        ({"options": {"num_instances": {"max_instances_per_host": "-5"}}}, "-5 is less than 0"),
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


@pytest.mark.parametrize(
    ("filters", "notes"),
    [
        (None, ("hints.query: no rule uses it: the filter json is off",)),
        (["json", "same_host"], ()),
        (
            ["up"],
            (
                "hints.same_host: no rule uses it: the filter same_host is off",
                "hints.query: no rule uses it: the filter json is off",
            ),
        ),
    ],
)
def test_a_hint_without_a_rule_causes_a_note(filters: Any, notes: tuple[str, ...]) -> None:
    hints = Hints(query='["=", 1, 1]', same_host=(uid(1, "b"),))
    assert ChoicePolicy.from_names(filters).unheeded(a_request(hints=hints)) == notes
    assert ChoicePolicy.from_names(filters).unheeded(a_request()) == ()


def kinds(policy: ChoicePolicy, *alternatives: Alternative) -> int:
    return len({policy.kind(alternative) for alternative in alternatives})


OTHER = Flavor(name="other", vcpus=1, memory_mb=1024, disk_gb=10)
FIRST, SECOND = uid(1, "c"), uid(2, "c")


@pytest.mark.parametrize(
    ("fields", "other", "filters", "weighers"),
    [
        ({}, {"metadata": {"a": "b"}}, [], []),
        ({"project": "p"}, {"project": "q"}, ["up"], ["ram"]),
        ({"image": None}, {"image": Image(name="i")}, ["up"], ["ram"]),
        ({}, {"flavor": OTHER}, ["up"], ["ram"]),
        ({"hints": Hints(query="[]")}, {}, ["up"], ["ram"]),
    ],
)
def test_fields_that_no_rule_reads_do_not_distinguish_requests(
    fields: Any, other: Any, filters: Any, weighers: Any
) -> None:
    policy = ChoicePolicy.from_names(filters, weighers)
    assert kinds(policy, a_wish(**fields), a_wish(a_request(2, **other))) == 1


@pytest.mark.parametrize(
    ("fields", "other", "enabled"),
    [
        ({"project": "p"}, {"project": "q"}, "aggregate_multi_tenancy_isolation"),
        ({"image": None}, {"image": Image(name="i")}, "image_cached"),
        ({}, {"flavor": OTHER}, "aggregate_type_affinity"),
        ({"hints": Hints(query="[]")}, {}, "json"),
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


def test_the_query_to_placement_distinguishes_requests_without_its_seed() -> None:
    policy, alternative = ChoicePolicy(), a_wish()

    def asking(**fields: Any) -> Alternative:
        return Alternative(alternative.request, alternative.flavor, replace(alternative.question, **fields))

    assert kinds(policy, asking(seed="a"), asking(seed="b")) == 1
    assert kinds(policy, asking(cell="a"), asking(cell="b")) == 2


def test_every_declared_field_can_be_read() -> None:
    """Every name a rule or weigher reads by can be read."""
    everything: Mapping[str, Any] = {"filters": [*RULES_CALLED], "weighers": [*WEIGHERS_CALLED]}
    policy = ChoicePolicy.from_names(**everything)
    alternative = a_wish(image=Image(name="i"))
    assert policy.kind(alternative) == policy.kind(alternative)
    assert {name for rule in policy.rules for name in rule.reads} >= {"image", "project", "hints.query"}


OPTIONS: dict[str, list[dict[str, Any]]] = {
    "metrics": [{}, {"weight_setting": {"t": -1.0}}, {"weight_setting": {"t": 1.0, "p": 2.0}}],
    "io_ops": [{}, {"max_io_ops_per_host": 1}, {"for_nova": True}],
    "num_instances": [{}, {"max_instances_per_host": 3}],
    "aggregate_image_properties_isolation": [{}, {"aggregate_image_properties_isolation_namespace": "os_"}],
    "pci": [{}, {"classes": []}, {"classes": ["VCPU"]}],
}
METADATA: dict[str, list[str]] = {
    "filter_tenant_id": ["p", "q", "p, q", ""],
    "filter_tenant_id2": ["p"],
    "instance_type": ["small", "large, small", "large", " "],
    "os_type": ["linux", "linux,bsd", "bsd"],
    "os_.type": ["linux", "bsd"],
    "ssd": ["true", "false"],
    "max_io_ops_per_host": ["1", "3", "many"],
    "max_instances_per_host": ["1", "2.5"],
}
a_metadata = st.fixed_dictionaries(
    {}, optional={key: st.sampled_from(values) for key, values in METADATA.items()}
)
some_aggregates = st.lists(a_metadata, max_size=3).map(
    lambda each: [an_aggregate(number, **metadata) for number, metadata in enumerate(each)]
)
a_state = st.fixed_dictionaries(
    {},
    optional={
        "load": st.sampled_from([0.0, 0.5, 3.0]),
        "enabled": st.booleans(),
        "forced_down": st.booleans(),
        "building": st.integers(0, 9),
        "instances": st.integers(0, 4),
        "hypervisor_version": st.sampled_from([0, 6_001_000]),
        "metrics": st.dictionaries(st.sampled_from(["t", "p"]), st.sampled_from([1.0, float("nan"), -3.0])),
        "images": st.sampled_from([(), ("linux",), ("bsd", "linux")]),
        "image_properties": st.sampled_from([{}, {"os_type=linux": 2}]),
    },
)
a_flavor = st.sampled_from(
    [
        Flavor(name="small", vcpus=1),
        Flavor(
            name="huge",
            vcpus=1,
            extra_specs={"ssd": "true", "aggregate_instance_extra_specs:os_type": "<or> bsd"},
        ),
    ]
)
an_image = st.sampled_from(
    [
        None,
        Image(name="linux", properties={"os_type": "linux"}),
        Image(name="i", properties={"os_.type": "bsd"}),
    ]
)
roots = st.sets(st.integers(0, 6).map(lambda number: uid(number, "c")), max_size=3)


@st.composite
def clouds(draw: st.DrawFn) -> list[HostFacts]:
    aggregates: list[Aggregate] = draw(some_aggregates)
    hosts = []
    for number in range(draw(st.integers(1, 5))):
        there = draw(st.lists(st.sampled_from(aggregates), unique_by=id)) if aggregates else []
        facts: dict[str, Any] = {"sent": draw(st.integers(0, 2)), "failures": float(draw(st.integers(0, 3)))}
        if draw(st.booleans()):
            facts |= {"load": 0.25, **draw(a_state)}
        elif draw(st.booleans()):
            facts["down"] = "never heard"
        facts["traits"] = draw(st.sampled_from([(), (DISABLED,), (FORCED_DOWN,), ("A", "B")]))
        facts["free"] = draw(st.sampled_from([{}, {"VCPU": 3}, {"VCPU": 200, "MEMORY_MB": 64, "PGPU": 2}]))
        hosts.append(the_facts(number, *there, **facts))
    return hosts


@st.composite
def alternatives(draw: st.DrawFn) -> Alternative:
    return a_wish(
        flavor=draw(a_flavor),
        image=draw(an_image),
        project=draw(st.sampled_from(["p", "q", "r"])),
        preferred=draw(st.sampled_from([{}, {"A": 1.0, "C": 2.0}])),
        preferred_amounts=draw(st.sampled_from([{}, {"VCPU": (8, 1.0), "PGPU": (4, -2.0)}])),
        same=draw(st.none() | roots.map(frozenset)),
        different=frozenset(draw(roots)),
        current_roots=frozenset(draw(roots)),
        is_external=draw(st.booleans()),
    )


MASKED = [name for name in RULES if RULES[name](**OPTIONS.get(name, [{}])[-1]).admits is not None]


def test_hosts_that_placement_excluded_are_not_checked_again() -> None:
    everybody, _ = seen_at_once([the_facts(1, traits=(DISABLED,))])
    alternative, admits = a_wish(), RULES["enabled"]().admits
    assert admits is not None
    question = replace(alternative.question, root_forbidden=(DISABLED,))
    events = Alternative(alternative.request, alternative.flavor, question)
    admitted = [np.broadcast_to(admits(everybody, each), 1).item() for each in (alternative, events)]
    assert admitted == [False, True]


@pytest.mark.parametrize("name", MASKED)
@settings(max_examples=40, deadline=None)
@given(cloud=clouds(), alternative=alternatives(), data=st.data())
def test_a_rules_mask_agrees_with_its_reasons(
    name: str, cloud: list[HostFacts], alternative: Alternative, data: st.DataObject
) -> None:
    rule = RULES[name](**data.draw(st.sampled_from(OPTIONS.get(name, [{}]))))
    everybody, each = seen_at_once(cloud)
    if rule.admits is None or (rule.concerns is not None and not rule.concerns(alternative)):
        assert [rule.refuses(facts, alternative) for facts in each] == [None] * len(each)
        return
    sentences = [rule.refuses(facts, alternative) is None for facts in each]
    assert np.broadcast_to(rule.admits(everybody, alternative), len(each)).tolist() == sentences
    assert [bool(rule.admits(OneHost(facts), alternative)) for facts in each] == sentences


@pytest.mark.parametrize("name", WEIGHERS)
@settings(max_examples=40, deadline=None)
@given(cloud=clouds(), alternative=alternatives(), data=st.data())
def test_a_weighers_array_agrees_with_single_hosts(
    name: str, cloud: list[HostFacts], alternative: Alternative, data: st.DataObject
) -> None:
    mine = OPTIONS.get(name, [{}]) if name not in RULES or name == "metrics" else [{}]
    weigher = WEIGHERS[name](**data.draw(st.sampled_from(mine)))
    everybody, each = seen_at_once(cloud)
    at_once = np.broadcast_to(weigher.value(everybody, alternative), len(each)).tolist()
    assert at_once == [float(weigher.value(OneHost(facts), alternative)) for facts in each]
    assert np.isfinite(at_once).all()
