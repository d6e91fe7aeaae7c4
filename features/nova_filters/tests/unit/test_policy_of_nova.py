"""The filters and the weigher of the feature in a policy: names, options, hints and equal requests."""

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.kit import BadSetting, sense_of
from bus.requests import Hints, Image
from features.nova_filters import weighers
from features.nova_filters.filters import PART
from features.nova_filters.request_reader import reader
from features.nova_filters.weighers import image_properties
from scheduler_worker.core.extension import Alternative, HostFacts, OneHost, Unreadable
from scheduler_worker.extension import ChoicePolicy
from scheduler_worker.testing import RequestOptions
from tests.support.random_hosts import assert_array_agrees, assert_mask_agrees, clouds, random_alternatives
from tests.support.rule_builders import a_wish, alternatives, the_facts
from tests.support.scheduler_builders import a_request

MADE = {made.__name__: made for more in PART.filters for made in more.made}
NAMES = {name: rules for more in PART.filters for name, rules in more.called.items()}
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "aggregate_image_properties_isolation": [{}, {"aggregate_image_properties_isolation_namespace": "os_"}],
    "metrics": [{"weight_setting": {"t": 1.0, "p": 2.0}}, {}, {"weight_setting": {"t": -1.0}}],
    "num_instances": [{}, {"max_instances_per_host": 3}],
}
OPTIONS_OF_REQUESTS = RequestOptions(readers=(reader(None),))
LINUX = a_wish(image=Image(name="linux", properties={"os_type": "linux", "hw_vm_mode": "hvm"}))
MIXED = the_facts(image_properties={"os_type=linux": 3, "hw_vm_mode=hvm": 2, "os_type=bsd": 9})


def test_every_filter_and_weigher_is_known_by_its_class_in_nova() -> None:
    called = {name: 1.0 for more in PART.weighers for name in more.called}
    policy = ChoicePolicy.from_names(NAMES, called)
    assert [rule.name for rule in policy.rules] == [*MADE]
    assert [weigher.name for weigher in policy.weighers] == [
        made.__name__ for more in PART.weighers for made in more.made
    ]
    assert policy.kind(LINUX) == policy.kind(LINUX)
    assert {name for rule in policy.rules for name in rule.reads} >= {"image", "flavor.name", "hints.query"}


@pytest.mark.parametrize(
    ("options", "alternative", "value"),
    [({}, LINUX, 5), ({"image_props_weight_setting": {"os_type": 2}}, LINUX, 6), ({}, a_wish(), 0)],
)
def test_instances_with_properties_of_the_image_are_counted(
    options: dict[str, Any], alternative: Alternative, value: float
) -> None:
    assert image_properties(**options).value(OneHost(MIXED), alternative) == value


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


@pytest.mark.parametrize("name", [name for name in MADE if MADE[name]().admits is not None])
@settings(max_examples=40, deadline=None)
@given(cloud=clouds(), alternative=random_alternatives(), data=st.data())
def test_a_filters_mask_agrees_with_its_reasons(
    name: str, cloud: list[HostFacts], alternative: Alternative, data: st.DataObject
) -> None:
    rule = MADE[name](**data.draw(st.sampled_from(OPTIONS.get(name, [{}]))))
    assert_mask_agrees(rule, cloud, alternative)


@pytest.mark.parametrize("made", [made for more in PART.weighers for made in more.made])
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
