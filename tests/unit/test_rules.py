"""One row for each filter: accepted hosts, and the reasons of rejected ones."""

from typing import Any

import pytest
from msgspec.structs import replace

from bus.groups import ServerGroup
from bus.requests import Flavor, Hints, Image
from scheduler_worker.core.alternative import Alternative
from scheduler_worker.core.facts import HostFacts
from scheduler_worker.core.rules import RULES
from tests.support.ids import uid
from tests.support.rule_builders import a_wish, an_aggregate, the_facts

HERE, ELSEWHERE = uid(1, "c"), uid(2, "c")
PLAIN = a_wish()


def wants(**extra_specs: str) -> Alternative:
    """Keyword names cannot have a colon: here it is two underscores."""
    specs = {key.replace("__", ":"): value for key, value in extra_specs.items()}
    return a_wish(flavor=Flavor(name="small", vcpus=1, extra_specs=specs))


def of_image(name: str = "linux", **properties: str) -> Alternative:
    return a_wish(image=Image(name=name, properties=properties))


def hinting(**hints: Any) -> Alternative:
    return a_wish(hints=Hints(**hints))


def joining(policy: Any, members: dict[str, int], **fields: Any) -> Alternative:
    group = ServerGroup(id=uid(1, "9"), name="web", policy=policy, max_per_host=fields.pop("most", 1))
    return a_wish(group=group, members=members, **fields)


def row(
    rule: str, host: HostFacts, alternative: Alternative, why: str | None, id: str, **options: Any
) -> Any:
    return pytest.param(rule, options, host, alternative, why, id=f"{rule}: {id}")


HOST = the_facts()
SAYS = the_facts(load=0.0)  # it has reported, and nothing but what everybody does

ROWS = [
    row("all_hosts", the_facts(down="down"), PLAIN, None, "whoever it is"),
    row("up", HOST, PLAIN, None, "heard of"),
    row("up", the_facts(down="down: silent"), PLAIN, "down: silent", "silent"),
    row("enabled", HOST, PLAIN, None, "not reported: enabled"),
    row("enabled", the_facts(enabled=True), PLAIN, None, "enabled"),
    row("enabled", the_facts(enabled=False), PLAIN, "disabled", "disabled"),
    row("enabled", the_facts(enabled=False, why_disabled="disk"), PLAIN, "disabled: disk", "for a reason"),
    row("enabled", the_facts(forced_down=True), PLAIN, "forced down by an operator", "forced down"),
    row(
        "enabled",
        the_facts(traits=("CUSTOM_BERTH_FORCED_DOWN",)),
        PLAIN,
        "forced down by an operator",
        "forced down in placement, however alive it is",
    ),
    row(
        "enabled",
        the_facts(traits=("COMPUTE_STATUS_DISABLED",)),
        PLAIN,
        "disabled",
        "disabled as Nova does it",
    ),
    # Zones
    row("zone", the_facts(), PLAIN, None, "any zone will do"),
    row("zone", the_facts(), a_wish(zone="b"), "in zone '', not in 'b'", "in none"),
    row("zone", the_facts(1, an_aggregate(availability_zone="b")), a_wish(zone="b"), None, "by an aggregate"),
    row(
        "zone",
        the_facts(1, an_aggregate(availability_zone="a")),
        a_wish(zone="b"),
        "in zone 'a', not in 'b'",
        "another by an aggregate",
    ),
    # Limits
    row("io_ops", the_facts(building=7), PLAIN, None, "seven builds"),
    row("io_ops", the_facts(building=8), PLAIN, "building 8 already, at most 8 at once", "eight builds"),
    row(
        "io_ops", the_facts(building=6, sent=2), PLAIN, "building 8 already, at most 8 at once", "ours count"
    ),
    row(
        "io_ops",
        the_facts(building=1),
        PLAIN,
        "building 1 already, at most 1 at once",
        "another limit",
        max_io_ops_per_host=1,
    ),
    row(
        "io_ops",
        the_facts(
            1,
            an_aggregate(1, max_io_ops_per_host="4"),
            an_aggregate(2, max_io_ops_per_host="2"),
            building=2,
        ),
        PLAIN,
        "building 2 already, at most 2 at once",
        "the least of its aggregates",
    ),
    row(
        "io_ops",
        the_facts(1, an_aggregate(max_io_ops_per_host="20"), building=19),
        PLAIN,
        None,
        "an aggregate allows more",
    ),
    row(
        "io_ops",
        the_facts(1, an_aggregate(max_io_ops_per_host="lots"), building=8),
        PLAIN,
        "building 8 already, at most 8 at once",
        "what an aggregate says is no number",
    ),
    row("few_failures", the_facts(failures=2.4), PLAIN, None, "two builds failed, and one long ago"),
    row(
        "few_failures",
        the_facts(failures=3.0),
        PLAIN,
        "builds failed there lately (3.0, fading): left alone from 2.5",
        "three failed",
    ),
    row("few_failures", the_facts(failures=3.0), PLAIN, None, "more are borne", max_build_failures=4.0),
    row("num_instances", HOST, PLAIN, None, "not reported: none"),
    row("num_instances", the_facts(instances=49), PLAIN, None, "49"),
    row("num_instances", the_facts(instances=50), PLAIN, "50 instances there already, at most 50", "50"),
    row(
        "num_instances",
        the_facts(instances=49, sent=1),
        PLAIN,
        "50 instances there already, at most 50",
        "ours count",
    ),
    row(
        "num_instances",
        the_facts(1, an_aggregate(max_instances_per_host="3"), instances=3),
        PLAIN,
        "3 instances there already, at most 3",
        "its aggregate allows fewer",
    ),
    row(
        "num_instances",
        the_facts(instances=2),
        PLAIN,
        "2 instances there already, at most 2",
        "another limit",
        max_instances_per_host=2,
    ),
    # Metrics
    row("metrics", HOST, PLAIN, None, "none that counts"),
    row("metrics", the_facts(metrics={"t": 1.0}), PLAIN, None, "reported", weight_setting={"t": 1.0}),
    row("metrics", HOST, PLAIN, "it does not report t", "not reported yet", weight_setting={"t": 1.0}),
    row(
        "metrics",
        the_facts(metrics={"t": 1.0, "u": float("nan")}),
        PLAIN,
        "it does not report u, v",
        "some reported",
        weight_setting={"t": 1.0, "u": 1.0, "v": 1.0},
    ),
    # Groups and neighbours
    row("server_group_anti_affinity", HOST, PLAIN, None, "no group"),
    row("server_group_anti_affinity", HOST, joining("anti-affinity", {ELSEWHERE: 1}), None, "elsewhere"),
    row(
        "server_group_anti_affinity",
        HOST,
        joining("anti-affinity", {HERE: 1}),
        "1 of server group web there, at most 1",
        "one there",
    ),
    row("server_group_anti_affinity", HOST, joining("anti-affinity", {HERE: 1}, most=2), None, "two allowed"),
    row(
        "server_group_anti_affinity",
        HOST,
        joining("anti-affinity", {HERE: 1}, own=frozenset([HERE])),
        None,
        "it is there itself",
    ),
    row("server_group_anti_affinity", HOST, joining("soft-anti-affinity", {HERE: 3}), None, "soft"),
    row("server_group_affinity", HOST, PLAIN, None, "no group"),
    row("server_group_affinity", HOST, joining("affinity", {}), None, "the first of it"),
    row("server_group_affinity", HOST, joining("affinity", {HERE: 1}), None, "others there"),
    row(
        "server_group_affinity",
        HOST,
        joining("affinity", {ELSEWHERE: 1}),
        "none of server group web there",
        "others elsewhere",
    ),
    row("server_group_affinity", HOST, joining("soft-affinity", {ELSEWHERE: 1}), None, "soft"),
    row("same_host", HOST, PLAIN, None, "not asked for"),
    row("same_host", HOST, a_wish(same=frozenset([HERE, ELSEWHERE])), None, "one of them there"),
    row(
        "same_host",
        HOST,
        a_wish(same=frozenset([ELSEWHERE])),
        "none of the instances of same_host is there",
        "they are elsewhere",
    ),
    row(
        "same_host",
        HOST,
        a_wish(same=frozenset()),
        "none of the instances of same_host is there",
        "they are nowhere",
    ),
    row("different_host", HOST, PLAIN, None, "not asked for"),
    row("different_host", HOST, a_wish(different=frozenset([ELSEWHERE])), None, "they are elsewhere"),
    row(
        "different_host",
        HOST,
        a_wish(different=frozenset([HERE])),
        "an instance of different_host is there",
        "one of them there",
    ),
    row("simple_cidr_affinity", HOST, PLAIN, None, "not asked for"),
    row(
        "simple_cidr_affinity",
        the_facts(ip="10.0.0.9"),
        hinting(build_near_host_ip="10.0.0.1"),
        None,
        "in the same /24",
    ),
    row(
        "simple_cidr_affinity",
        the_facts(ip="10.0.1.9"),
        hinting(build_near_host_ip="10.0.0.1"),
        "its address 10.0.1.9 is not in 10.0.0.0/24",
        "in another",
    ),
    row(
        "simple_cidr_affinity",
        the_facts(ip="10.0.1.9"),
        hinting(build_near_host_ip="10.0.0.1", cidr="/16"),
        None,
        "in a wider one",
    ),
    row(
        "simple_cidr_affinity",
        HOST,
        hinting(build_near_host_ip="10.0.0.1"),
        "it does not report its address",
        "no address",
    ),
    row(
        "simple_cidr_affinity",
        the_facts(ip="nowhere"),
        hinting(build_near_host_ip="fd00::1", cidr="/64"),
        "its address nowhere is not in fd00::/64",
        "an address that is none",
    ),
    row(
        "simple_cidr_affinity",
        the_facts(ip="10.0.0.9"),
        hinting(build_near_host_ip="10.0.0.1", cidr="/99"),
        "10.0.0.1/99 is no network",
        "a network that is none",
    ),
    # Images
    row("image_properties", HOST, PLAIN, None, "no image"),
    row("image_properties", HOST, of_image(), None, "an image that runs anywhere"),
    row(
        "image_properties", the_facts(architecture="aarch64"), of_image(hw_architecture="arm64"), None, "fits"
    ),
    row(
        "image_properties",
        the_facts(architecture="x86_64"),
        of_image(hw_architecture="aarch64"),
        "the image needs architecture aarch64; it has x86_64",
        "another architecture",
    ),
    row(
        "image_properties",
        HOST,
        of_image(architecture="x86_64"),
        "the image needs architecture x86_64; it does not say which it has",
        "nobody knows",
    ),
    row(
        "image_properties",
        the_facts(architecture="x86_64"),
        of_image(),
        "the image needs architecture aarch64; it has x86_64",
        "the default architecture",
        image_properties_default_architecture="aarch64",
    ),
    row(
        "image_properties",
        the_facts(hypervisor="QEMU"),
        of_image(img_hv_type="kvm"),
        "the image needs hypervisor kvm; it has QEMU",
        "another hypervisor",
    ),
    row(
        "image_properties",
        the_facts(vm_modes=("hvm", "xen")),
        of_image(hw_vm_mode="hv"),
        None,
        "one of its VM modes",
    ),
    row(
        "image_properties",
        the_facts(vm_modes=("hvm",)),
        of_image(vm_mode="exe"),
        "the image needs VM mode exe; it has hvm",
        "none of its VM modes",
    ),
    row(
        "image_properties",
        the_facts(hypervisor_version=6_001_000),
        of_image(img_hv_requested_version=">=6.0,<6.2"),
        None,
        "a version within",
    ),
    row(
        "image_properties",
        the_facts(hypervisor_version=6_002_000),
        of_image(hypervisor_version_requires=">=6.0,<6.2"),
        "the image needs hypervisor version >=6.0,<6.2; it has 6.2.0",
        "a version beyond",
    ),
    row("image_properties", SAYS, of_image(img_hv_requested_version=">=6"), None, "an unknown version"),
    row(
        "image_properties",
        the_facts(hypervisor_version=6_002_000),
        of_image(img_hv_requested_version="new"),
        "the image needs hypervisor version 'new', which is none",
        "a version that is none",
    ),
    row(
        "image_properties",
        the_facts(capabilities={"maxphysaddr_bits": "39"}),
        of_image(hw_maxphysaddr_bits="42"),
        "the image needs addresses of 42 bits; it has 39",
        "short addresses",
    ),
    row("image_properties", SAYS, of_image(hw_maxphysaddr_bits="42"), None, "unknown width of addresses"),
    row("isolated_hosts", HOST, PLAIN, None, "nothing is isolated"),
    row(
        "isolated_hosts",
        HOST,
        of_image("secret"),
        "image 'secret' runs on isolated hosts only",
        "an isolated image elsewhere",
        isolated_images=["secret"],
        isolated_hosts=["host2"],
    ),
    row(
        "isolated_hosts",
        HOST,
        of_image("secret"),
        None,
        "an isolated image there",
        isolated_images=["secret"],
        isolated_hosts=[HERE],
    ),
    row(
        "isolated_hosts",
        HOST,
        PLAIN,
        "it is kept for isolated images",
        "another there",
        isolated_hosts=["host1"],
    ),
    row(
        "isolated_hosts",
        HOST,
        of_image("plain"),
        None,
        "another there, which may be",
        isolated_images=["secret"],
        isolated_hosts=["host1"],
        restrict_isolated_hosts_to_isolated_images=False,
    ),
    # Aggregates
    row("aggregate_multi_tenancy_isolation", HOST, a_wish(project="p"), None, "for nobody"),
    row(
        "aggregate_multi_tenancy_isolation",
        the_facts(1, an_aggregate(1, filter_tenant_id="q, r"), an_aggregate(2, filter_tenant_id3="p")),
        a_wish(project="p"),
        None,
        "for us among others",
    ),
    row(
        "aggregate_multi_tenancy_isolation",
        the_facts(1, an_aggregate(filter_tenant_id="q")),
        a_wish(project="p"),
        "its aggregates are kept for projects other than p",
        "for others",
    ),
    row("aggregate_type_affinity", the_facts(1, an_aggregate(other="x")), PLAIN, None, "for any flavor"),
    row(
        "aggregate_type_affinity",
        the_facts(1, an_aggregate(instance_type="large, small")),
        PLAIN,
        None,
        "for ours among others",
    ),
    row(
        "aggregate_type_affinity",
        the_facts(1, an_aggregate(1, instance_type="large"), an_aggregate(2, instance_type="huge")),
        PLAIN,
        "its aggregates are for flavor large, huge",
        "for others",
    ),
    row("aggregate_image_properties_isolation", HOST, of_image(os_type="windows"), None, "no aggregates"),
    row(
        "aggregate_image_properties_isolation",
        the_facts(1, an_aggregate(1, os_type="linux"), an_aggregate(2, os_type="windows, bsd")),
        of_image(os_type="bsd"),
        None,
        "for us among others",
    ),
    row(
        "aggregate_image_properties_isolation",
        the_facts(1, an_aggregate(os_type="linux")),
        of_image(os_type="windows"),
        "its aggregates are for images with os_type linux, not windows",
        "for others",
    ),
    row(
        "aggregate_image_properties_isolation",
        the_facts(1, an_aggregate(os_type="linux")),
        of_image(hw_disk_bus="ide"),
        None,
        "an image that does not say",
    ),
    row(
        "aggregate_image_properties_isolation",
        the_facts(1, an_aggregate(ssd="true")),
        of_image(ssd="false"),
        None,
        "no property that is known",
    ),
    row(
        "aggregate_image_properties_isolation",
        the_facts(1, an_aggregate(1, **{"own.kind": "a", "os_type": "linux"})),
        a_wish(image=Image(name="i", properties={"own.kind": "b", "os_type": "windows"})),
        "its aggregates are for images with own.kind a, not b",
        "of a namespace",
        aggregate_image_properties_isolation_namespace="own",
    ),
    row("aggregate_instance_extra_specs", HOST, PLAIN, None, "nothing demanded"),
    row("aggregate_instance_extra_specs", HOST, wants(hw__cpu_policy="shared"), None, "of another scope"),
    row("aggregate_instance_extra_specs", HOST, wants(group_policy="none"), None, "placement's word"),
    row(
        "aggregate_instance_extra_specs",
        the_facts(1, an_aggregate(1, ssd="false"), an_aggregate(2, ssd="true", memory="96")),
        wants(ssd="true", aggregate_instance_extra_specs__memory=">= 64"),
        None,
        "met by one of them each",
    ),
    row(
        "aggregate_instance_extra_specs",
        the_facts(1, an_aggregate(memory="32, 48")),
        wants(memory=">= 64"),
        "its aggregates are to have memory >= 64; they say 32, 48",
        "not met",
    ),
    row(
        "aggregate_instance_extra_specs",
        HOST,
        wants(ssd="true"),
        "its aggregates are to have ssd true; they do not say it",
        "not said",
    ),
    # What a host can
    row("compute_capabilities", HOST, PLAIN, None, "nothing demanded"),
    row("compute_capabilities", HOST, wants(hw__cpu_policy="shared"), None, "of another scope"),
    row(
        "compute_capabilities",
        the_facts(capabilities={"cpu_info:arch": "x86_64"}),
        wants(capabilities__cpu_info__arch="s== x86_64"),
        None,
        "met",
    ),
    row(
        "compute_capabilities",
        the_facts(hypervisor="kvm"),
        wants(capabilities__hypervisor_type="s== qemu"),
        "hypervisor_type is to be s== qemu; it is kvm",
        "not met",
    ),
    row(
        "compute_capabilities",
        SAYS,
        wants(capabilities__gpu="1"),
        "gpu is to be 1; it does not say",
        "missing",
    ),
    row("compute_capabilities", SAYS, wants(gpu="1"), None, "without a scope: not meant for it"),
    row(
        "compute_capabilities",
        the_facts(capabilities={"gpu": "2"}),
        wants(gpu="== 1"),
        "gpu is to be == 1; it is 2",
        "without a scope, and the host says it",
    ),
    row(
        "compute_capabilities",
        HOST,
        wants(capabilities__free_ram_mb=">= 8193"),
        "free_ram_mb is to be >= 8193; it is 8192",
        "of placement's figures",
    ),
    row("json", HOST, PLAIN, None, "nothing asked"),
    row("json", HOST, hinting(query='[">=", "$free_ram_mb", 8192]'), None, "true"),
    row("json", HOST, hinting(query='[">", "$free_ram_mb", 8192]'), "the query is not true of it", "false"),
    row(
        "json",
        HOST,
        hinting(query="luck"),
        "the query means nothing: it is not JSON: JSON is malformed: invalid character (byte 0)",
        "no query",
    ),
]


@pytest.mark.parametrize(("name", "options", "host", "alternative", "why"), ROWS)
def test_rule(
    name: str, options: dict[str, Any], host: HostFacts, alternative: Alternative, why: str | None
) -> None:
    rule = RULES[name](**options)
    assert rule.refuses(host, alternative) == why
    assert rule.concerns is None or rule.concerns(alternative) or why is None


def test_every_rule_has_its_rows_of_admitted_and_refused() -> None:
    seen = {(row.values[0], row.values[4] is None) for row in ROWS}
    assert seen == {(name, admits) for name in RULES for admits in (True, False)} - {("all_hosts", False)}


def test_where_placement_was_asked_for_the_zone_the_rule_has_no_say() -> None:
    asked = a_wish(zone="b")
    rule = RULES["zone"]()
    assert rule.concerns is not None
    assert rule.concerns(asked)
    by_placement = Alternative(asked.request, asked.flavor, replace(asked.question, zone="b"))
    assert not rule.concerns(by_placement)
