"""Random hosts and requests, with which the arrays of filters and weighers are compared with single hosts."""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from bus.aggregates import Aggregate
from bus.host_health import DISABLED, FORCED_DOWN
from bus.requests import Flavor, Image
from scheduler_worker.core.rule import Alternative, HostFacts, OneHost, Rule, Weigher
from tests.support.ids import uid
from tests.support.rule_builders import a_wish, an_aggregate, seen_at_once, the_facts

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
def random_alternatives(draw: st.DrawFn) -> Alternative:
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


def assert_mask_agrees(rule: Rule, cloud: list[HostFacts], alternative: Alternative) -> None:
    everybody, each = seen_at_once(cloud)
    if rule.admits is None or (rule.concerns is not None and not rule.concerns(alternative)):
        assert [rule.refuses(facts, alternative) for facts in each] == [None] * len(each)
        return
    sentences = [rule.refuses(facts, alternative) is None for facts in each]
    assert np.broadcast_to(rule.admits(everybody, alternative), len(each)).tolist() == sentences
    assert [bool(rule.admits(OneHost(facts), alternative)) for facts in each] == sentences


def assert_array_agrees(weigher: Weigher, cloud: list[HostFacts], alternative: Alternative) -> None:
    everybody, each = seen_at_once(cloud)
    at_once = np.broadcast_to(weigher.value(everybody, alternative), len(each)).tolist()
    assert at_once == [float(weigher.value(OneHost(facts), alternative)) for facts in each]
    assert np.isfinite(at_once).all()
