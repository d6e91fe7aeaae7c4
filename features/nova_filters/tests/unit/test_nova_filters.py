"""One row for each filter of the feature: accepted hosts, and the reasons of rejected ones."""

from typing import Any

import pytest

from bus.requests import Flavor, Hints, Image
from features.nova_filters.filters import PART
from scheduler_worker.core.extension import Alternative, HostFacts
from tests.support.rule_builders import a_wish, an_aggregate, the_facts
from tests.support.rule_cases import RuleCases, assert_verdict, misses_no_field, parameters

MADE = {made.__name__: made for more in PART.filters for made in more.made}
PLAIN = a_wish()


def wants(**extra_specs: str) -> Alternative:
    """Keyword names cannot have a colon: here it is two underscores."""
    specs = {key.replace("__", ":"): value for key, value in extra_specs.items()}
    return a_wish(flavor=Flavor(name="small", vcpus=1, extra_specs=specs))


def of_image(name: str = "linux", **properties: str) -> Alternative:
    return a_wish(image=Image(name=name, properties=properties))


def hinting(**hints: Any) -> Alternative:
    return a_wish(hints=Hints(**hints))


HOST = the_facts()
SAYS = the_facts(load=0.0)  # it has reported, and nothing but what everybody does

CASES: RuleCases = {
    "image_properties": [
        ("no image", HOST, PLAIN, None),
        ("an image that runs anywhere", HOST, of_image(), None),
        ("fits", the_facts(architecture="aarch64"), of_image(hw_architecture="arm64"), None),
        ("another architecture", the_facts(architecture="x86_64"), of_image(hw_architecture="aarch64"),
         "the image needs architecture aarch64; it has x86_64"),
        ("nobody knows", HOST, of_image(architecture="x86_64"),
         "the image needs architecture x86_64; it does not report any"),
        ("the default architecture", the_facts(architecture="x86_64"), of_image(),
         "the image needs architecture aarch64; it has x86_64",
         {"image_properties_default_architecture": "aarch64"}),
        ("another hypervisor", the_facts(hypervisor="QEMU"), of_image(img_hv_type="kvm"),
         "the image needs hypervisor kvm; it has QEMU"),
        ("one of its VM modes", the_facts(vm_modes=("hvm", "xen")), of_image(hw_vm_mode="hv"), None),
        ("none of its VM modes", the_facts(vm_modes=("hvm",)), of_image(vm_mode="exe"),
         "the image needs VM mode exe; it has hvm"),
        ("one of the kinds of its guests",
         the_facts(guest_kinds=("i686/qemu/hvm", "x86_64/kvm/hvm"), hypervisor="QEMU"),
         of_image(hw_architecture="amd64", img_hv_type="kvm"), None),
        ("parts of two kinds of its guests", the_facts(guest_kinds=("i686/qemu/hvm", "x86_64/kvm/hvm")),
         of_image(hw_architecture="i686", img_hv_type="kvm"),
         "the image needs i686, kvm; no kind of its guests has all of it"),
        ("no kind of its guests", the_facts(guest_kinds=("i686/qemu/hvm", "x86_64/kvm/hvm")),
         of_image(hw_architecture="aarch64"), "the image needs architecture aarch64; it has i686, x86_64"),
        ("a version within", the_facts(hypervisor_version=6001000),
         of_image(img_hv_requested_version=">=6.0,<6.2"), None),
        ("a version beyond", the_facts(hypervisor_version=6002000),
         of_image(hypervisor_version_requires=">=6.0,<6.2"),
         "the image needs hypervisor version >=6.0,<6.2; it has 6.2.0"),
        ("a version that is none", the_facts(hypervisor_version=6002000),
         of_image(img_hv_requested_version="new"), "the image needs hypervisor version 'new', which is"
         " not a valid condition"),
        ("short addresses", the_facts(capabilities={"maxphysaddr_bits": "39"}),
         of_image(hw_maxphysaddr_bits="42"), "the image needs addresses of 42 bits; it has 39"),
        ("unknown width of addresses", SAYS, of_image(hw_maxphysaddr_bits="42"), None),
    ],
    "isolated_hosts": [
        ("nothing is isolated", HOST, PLAIN, None),
        ("an isolated image elsewhere", HOST, of_image("secret"),
         "image 'secret' runs on isolated hosts only",
         {"isolated_images": ["secret"], "isolated_hosts": ["host2"]}),
        ("another there", HOST, PLAIN, "it is only for isolated images", {"isolated_hosts": ["host1"]}),
        (
            "another there, which may be",
            HOST,
            of_image("plain"),
            None,
            {
                "isolated_images": ["secret"],
                "isolated_hosts": ["host1"],
                "restrict_isolated_hosts_to_isolated_images": False,
            },
        ),
    ],
    "aggregate_type_affinity": [
        ("for any flavor", the_facts(1, an_aggregate(other="x")), PLAIN, None),
        ("for ours among others", the_facts(1, an_aggregate(instance_type="large, small")), PLAIN, None),
        ("for others",
         the_facts(1, an_aggregate(1, instance_type="large"), an_aggregate(2, instance_type="huge")), PLAIN,
         "its aggregates are for flavor large, huge"),
    ],
    "aggregate_image_properties_isolation": [
        ("no aggregates", HOST, of_image(os_type="windows"), None),
        ("for us among others",
         the_facts(1, an_aggregate(1, os_type="linux"), an_aggregate(2, os_type="windows, bsd")),
         of_image(os_type="bsd"), None),
        ("for others", the_facts(1, an_aggregate(os_type="linux")), of_image(os_type="windows"),
         "its aggregates are for images with os_type linux, not windows"),
        ("an image that does not say", the_facts(1, an_aggregate(os_type="linux")),
         of_image(hw_disk_bus="ide"), None),
        ("no property that is known", the_facts(1, an_aggregate(ssd="true")), of_image(ssd="false"), None),
        ("of a namespace", the_facts(1, an_aggregate(1, **{"own.kind": "a", "os_type": "linux"})),
         a_wish(image=Image(name="i", properties={"own.kind": "b", "os_type": "windows"})),
         "its aggregates are for images with own.kind a, not b",
         {"aggregate_image_properties_isolation_namespace": "own"}),
    ],
    "aggregate_instance_extra_specs": [
        ("nothing demanded", HOST, PLAIN, None),
        ("of another scope", HOST, wants(hw__cpu_policy="shared"), None),
        ("placement's word", HOST, wants(group_policy="none"), None),
        ("met by one of them each",
         the_facts(1, an_aggregate(1, ssd="false"), an_aggregate(2, ssd="true", memory="96")),
         wants(ssd="true", aggregate_instance_extra_specs__memory=">= 64"), None),
        ("not met", the_facts(1, an_aggregate(memory="32, 48")), wants(memory=">= 64"),
         "its aggregates are to have memory >= 64; they have 32, 48"),
    ],
    "compute_capabilities": [
        ("nothing demanded", HOST, PLAIN, None),
        ("of another scope", HOST, wants(hw__cpu_policy="shared"), None),
        ("met", the_facts(capabilities={"cpu_info:arch": "x86_64"}),
         wants(capabilities__cpu_info__arch="s== x86_64"), None),
        ("not met", the_facts(hypervisor="kvm"), wants(capabilities__hypervisor_type="s== qemu"),
         "hypervisor_type is to be s== qemu; it is kvm"),
        ("empty", the_facts(hypervisor=""), wants(capabilities__hypervisor_type="xen"),
         "hypervisor_type is to be xen; it is not reported"),
        ("without a scope: not meant for it", SAYS, wants(gpu="1"), None),
        ("without a scope, and the host says it", the_facts(capabilities={"gpu": "2"}), wants(gpu="== 1"),
         "gpu is to be == 1; it is 2"),
        ("its name at the hypervisor", the_facts(capabilities={"hypervisor_hostname": "node-1"}),
         wants(capabilities__nodename="node-1"), None),
        ("the name of its agent's host, if it reports no other", SAYS,
         wants(capabilities__nodename="host1"), None),
        ("of placement's figures", HOST, wants(capabilities__free_ram_mb=">= 8193"),
         "free_ram_mb is to be >= 8193; it is 8192"),
    ],
    "all_hosts": [("whoever it is", the_facts(down="down"), PLAIN, None)],
    "num_instances": [
        ("not reported: none", HOST, PLAIN, None),
        ("ours count", the_facts(instances=49, sent=1), PLAIN, "50 instances there already, at most 50"),
        ("its aggregate allows fewer", the_facts(1, an_aggregate(max_instances_per_host="3"), instances=3),
         PLAIN, "3 instances there already, at most 3"),
        ("another limit", the_facts(instances=2), PLAIN, "2 instances there already, at most 2",
         {"max_instances_per_host": 2}),
    ],
    "metrics": [
        ("reported", the_facts(metrics={"t": 1.0}), PLAIN, None, {"weight_setting": {"t": 1.0}}),
        ("not reported yet", HOST, PLAIN, "it does not report t", {"weight_setting": {"t": 1.0}}),
        ("some reported", the_facts(metrics={"t": 1.0, "u": float("nan")}), PLAIN, "it does not report u, v",
         {"weight_setting": {"t": 1.0, "u": 1.0, "v": 1.0}}),
    ],
    "simple_cidr_affinity": [
        ("not asked for", HOST, PLAIN, None),
        ("in the same /24", the_facts(ip="10.0.0.9"), hinting(build_near_host_ip="10.0.0.1"), None),
        ("in a wider one", the_facts(ip="10.0.1.9"), hinting(build_near_host_ip="10.0.0.1", cidr="/16"),
         None),
        ("no address", HOST, hinting(build_near_host_ip="10.0.0.1"), "it does not report its address"),
        ("an address that is none", the_facts(ip="nowhere"),
         hinting(build_near_host_ip="fd00::1", cidr="/64"), "its address nowhere is not in fd00::/64"),
        ("a network that is none", the_facts(ip="10.0.0.9"),
         hinting(build_near_host_ip="10.0.0.1", cidr="/99"), "10.0.0.1/99 is no network"),
    ],
    "aggregate_multi_tenancy_isolation": [
        ("for nobody", HOST, a_wish(project="p"), None),
        ("for us among others",
         the_facts(1, an_aggregate(1, filter_tenant_id="q, r"), an_aggregate(2, filter_tenant_id3="p")),
         a_wish(project="p"), None),
        ("for others", the_facts(1, an_aggregate(filter_tenant_id="q")), a_wish(project="p"),
         "its aggregates are for projects other than p"),
    ],
    "json": [
        ("nothing asked", HOST, PLAIN, None),
        ("true", HOST, hinting(query='[">=", "$free_ram_mb", 8192]'), None),
        ("false", HOST, hinting(query='[">", "$free_ram_mb", 8192]'), "the query is not true of it"),
        ("no query", HOST, hinting(query="luck"),
         "the query means nothing: it is not JSON: JSON is malformed: invalid character (byte 0)"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(("name", "host", "alternative", "why", "options"), parameters(CASES))
def test_a_filter_admits_a_host_or_gives_the_reason(
    name: str, host: HostFacts, alternative: Alternative, why: str | None, options: dict[str, Any]
) -> None:
    assert_verdict(MADE[name](**options), host, alternative, why)


def test_every_filter_has_an_admitted_and_a_refused_case() -> None:
    seen = {(name, row[3] is None) for name, rows in CASES.items() for row in rows}
    assert seen == {(name, admits) for name in MADE for admits in (True, False)} - {("all_hosts", False)}


@pytest.mark.parametrize("name", MADE)
def test_a_filter_reads_only_what_it_declares(name: str) -> None:
    assert misses_no_field(MADE[name], name, CASES)
