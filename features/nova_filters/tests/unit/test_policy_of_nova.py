"""The filters and the weigher of the feature in a policy: names, options, hints and equal requests."""

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.choice import request_options
from berth.operations.request_sense import sense_of
from berth.settings import BadSetting, Settings
from bus.requests import Flavor, Hints, Image
from features.nova_filters import weighers
from features.nova_filters.filters import FILTERS, WEIGHERS
from features.nova_filters.request_reader import reader
from features.nova_filters.weighers import image_properties
from scheduler_worker.core.policy import ChoicePolicy
from scheduler_worker.core.request import RequestOptions, Unreadable
from scheduler_worker.core.rule import Alternative, HostFacts, OneHost
from tests.support.random_hosts import assert_array_agrees, assert_mask_agrees, clouds, random_alternatives
from tests.support.rule_builders import a_wish, alternatives, flavor, the_facts
from tests.support.scheduler_builders import a_request

MADE = {made.__name__: made for more in FILTERS for made in more.made}
NAMES = {name: rules for more in FILTERS for name, rules in more.called.items()}
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "aggregate_image_properties_isolation": [{}, {"aggregate_image_properties_isolation_namespace": "os_"}],
    "metrics": [{"weight_setting": {"t": 1.0, "p": 2.0}}, {}, {"weight_setting": {"t": -1.0}}],
    "num_instances": [{}, {"max_instances_per_host": 3}],
}
OPTIONS_OF_REQUESTS = RequestOptions(readers=(reader(None),))
LINUX = a_wish(image=Image(name="linux", properties={"os_type": "linux", "hw_vm_mode": "hvm"}))
MIXED = the_facts(image_properties={"os_type=linux": 3, "hw_vm_mode=hvm": 2, "os_type=bsd": 9})


def test_every_filter_and_weigher_is_known_by_its_class_in_nova() -> None:
    called = {name: 1.0 for more in WEIGHERS for name in more.called}
    policy = ChoicePolicy.from_names(NAMES, called)
    assert [rule.name for rule in policy.rules] == [*MADE]
    assert [weigher.name for weigher in policy.weighers] == [
        made.__name__ for more in WEIGHERS for made in more.made
    ]
    assert policy.kind(LINUX) == policy.kind(LINUX)
    assert {name for rule in policy.rules for name in rule.reads} >= {"image", "flavor.name", "hints.query"}


def test_filters_by_extra_specs_and_image_are_enabled_after_those_of_the_hosts_state() -> None:
    names = [rule.name for rule in ChoicePolicy().rules]
    assert names[:6] == ["up", "enabled", "zone", "io_ops", "compute_capabilities", "image_properties"]
    assert names[-2:] == ["simple_cidr_affinity", "aggregate_multi_tenancy_isolation"]
    assert {*MADE} & {*names} == {"compute_capabilities", "image_properties", *names[-2:]}
    order = [weigher.name for weigher in ChoicePolicy().weighers]
    assert order.index("load") < order.index("hypervisor_version") < order.index("build_failure")
    assert order.index("build_failure") < order.index("num_instances") < order.index("metrics")
    assert order[order.index("metrics") + 1] == "preferred_traits"


def test_options_are_converted_to_their_types() -> None:
    options = {
        "isolated_hosts": {
            "isolated_hosts": "host1, host2",
            "restrict_isolated_hosts_to_isolated_images": "false",
        }
    }
    (isolated,) = ChoicePolicy.from_names(["isolated_hosts"], options=options).rules
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


@pytest.mark.parametrize(("multiplier", "weighers"), [(1.0, ["image_properties"]), (0.0, [])])
def test_the_multiplier_0_disables_the_weigher(multiplier: float, weighers: list[str]) -> None:
    policy = ChoicePolicy.from_names(weighers={"image_properties": multiplier})
    assert [weigher.name for weigher in policy.weighers] == weighers


@pytest.mark.parametrize(
    ("options", "alternative", "value"),
    [({}, LINUX, 5), ({"image_props_weight_setting": {"os_type": 2}}, LINUX, 6), ({}, a_wish(), 0)],
)
def test_instances_with_properties_of_the_image_are_counted(
    options: dict[str, Any], alternative: Alternative, value: float
) -> None:
    assert image_properties(**options).value(OneHost(MIXED), alternative) == value


@pytest.mark.parametrize(
    ("filters", "notes"), [(None, ("hints.query: no rule uses it: the filter json is off",)), (["json"], ())]
)
def test_a_query_without_its_filter_causes_a_note(filters: Any, notes: tuple[str, ...]) -> None:
    hints = Hints(query='["=", 1, 1]')
    assert ChoicePolicy.from_names(filters).unheeded(a_request(hints=hints)) == notes


def test_an_address_without_its_filter_causes_a_note() -> None:
    (note,) = ChoicePolicy.from_names(["up"]).unheeded(a_request(hints=Hints(build_near_host_ip="10.0.0.1")))
    assert note == "hints.build_near_host_ip: no rule uses it: the filter simple_cidr_affinity is off"


@pytest.mark.parametrize(
    ("hints", "why"),
    [
        (Hints(query='["~", "$load", 1]'), "hints.query: '~' is no command"),
        (Hints(build_near_host_ip="10.0.0"), "hints.build_near_host_ip: '10.0.0' is no IP address"),
        (Hints(build_near_host_ip="10.0.0.1", cidr="/33"), "hints.cidr: '/33' is none of /0 to /32"),
    ],
    ids=str,
)
def test_an_invalid_hint_is_refused_with_the_request(hints: Hints, why: str) -> None:
    with pytest.raises(Unreadable, match=re.escape(why)):
        alternatives(OPTIONS_OF_REQUESTS, hints=hints)
    with pytest.raises(BadSetting, match=re.escape(why)):
        sense_of(a_request(hints=hints))


def test_a_network_without_an_address_causes_a_note() -> None:
    (alternative,) = alternatives(OPTIONS_OF_REQUESTS, hints=Hints(cidr="/16"))
    assert alternative.notes == ("hints.cidr: means something only with hints.build_near_host_ip",)


def test_scopes_that_filters_read_cause_no_note() -> None:
    specs = {"capabilities:hypervisor_type": "kvm", "aggregate_instance_extra_specs:ssd": "true"}
    assert alternatives(OPTIONS_OF_REQUESTS, flavor=flavor(specs))[-1].notes == ()
    assert sense_of(a_request(flavor=flavor(specs))) == ()


@pytest.mark.parametrize(
    ("fields", "enabled"),
    [
        ({"flavor": Flavor(name="other", vcpus=1, memory_mb=1024, disk_gb=10)}, "aggregate_type_affinity"),
        ({"hints": Hints(query="[]")}, "json"),
        ({"hints": Hints(build_near_host_ip="10.0.0.1")}, "simple_cidr_affinity"),
        ({"project": "q"}, "aggregate_multi_tenancy_isolation"),
    ],
)
def test_fields_that_a_filter_reads_distinguish_requests(fields: Any, enabled: str) -> None:
    policy = ChoicePolicy.from_names([enabled], [])
    assert policy.kind(a_wish(**fields)) != policy.kind(a_wish())


@pytest.mark.parametrize(
    ("rules", "read"),
    [
        ("", True),  # by default it is on
        ("enabled", False),
        ("enabled,compute_capabilities", True),
        ("+few_failures", True),
        ("-ComputeCapabilitiesFilter", False),
    ],
)
def test_whether_some_rule_reads_extra_specs_without_a_scope(rules: str, read: bool) -> None:
    sent = Settings().having(scheduler_filters=tuple(filter(None, rules.split(","))))
    assert request_options(sent).unscoped is read


@pytest.mark.parametrize("name", [name for name in MADE if MADE[name]().admits is not None])
@settings(max_examples=40, deadline=None)
@given(cloud=clouds(), alternative=random_alternatives(), data=st.data())
def test_a_filters_mask_agrees_with_its_reasons(
    name: str, cloud: list[HostFacts], alternative: Alternative, data: st.DataObject
) -> None:
    rule = MADE[name](**data.draw(st.sampled_from(OPTIONS.get(name, [{}]))))
    assert_mask_agrees(rule, cloud, alternative)


@pytest.mark.parametrize("made", [made for more in WEIGHERS for made in more.made])
@settings(max_examples=40, deadline=None)
@given(cloud=clouds(), alternative=random_alternatives(), data=st.data())
def test_a_weighers_array_agrees_with_single_hosts(
    made: Any, cloud: list[HostFacts], alternative: Alternative, data: st.DataObject
) -> None:
    options = OPTIONS["metrics"] if made.__name__ == "metrics" else [{}]
    assert_array_agrees(made(**data.draw(st.sampled_from(options))), cloud, alternative)


def row(made: Any, host: HostFacts, alternative: Alternative, value: float, id: str, **options: Any) -> Any:
    return pytest.param(made, options, host, alternative, value, id=f"{made.__name__}: {id}")


HOST, PLAIN = the_facts(), a_wish()


@pytest.mark.parametrize(
    ("made", "options", "host", "alternative", "value"),
    [
        row(weighers.hypervisor_version, the_facts(hypervisor_version=8_001_002), PLAIN, 8_001_002,
            "reported"),
        row(weighers.hypervisor_version, the_facts(load=0.1), PLAIN, 0, "not said"),
        row(weighers.num_instances, the_facts(instances=3, sent=1), PLAIN, 4, "its own and those sent there"),
        row(weighers.metrics, the_facts(metrics={"t": 40.0}), PLAIN, 0, "none counts"),
        row(weighers.metrics, the_facts(metrics={"t": 40.0, "p": 3.0}), PLAIN, -34, "each by its ratio",
         weight_setting={"t": -1, "p": 2}),
        row(weighers.metrics, the_facts(metrics={"t": 40.0}), PLAIN, -10_000, "one is missing",
         weight_setting={"t": 1, "p": 1}),
        row(weighers.metrics, HOST, PLAIN, -5, "not reported",
            weight_setting={"t": 1}, weight_of_unavailable=-5.0),
    ],
)  # fmt: skip
def test_weigher(
    made: Any, options: dict[str, Any], host: HostFacts, alternative: Alternative, value: float
) -> None:
    assert made(**options).value(OneHost(host), alternative) == value


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
    policy = ChoicePolicy.from_names(filters=["up"], options={"metrics": options})
    assert [rule.name for rule in policy.rules] == rules
