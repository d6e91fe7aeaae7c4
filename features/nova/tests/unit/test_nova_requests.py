"""Translation of Nova's RequestSpec into berth's requests, and of placed builds into Nova's Selections."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from bus.acts import act_of, describe, ids_of
from bus.claims import Choice
from bus.messages import BuildPlaced, Selection
from bus.requests import BuildSpec, Flavor, Hints, ResourceGroup
from features.nova.core.cloud import NovaCell, NovaCloud
from features.nova.core.objects import plain, versioned
from features.nova.core.request_spec import MalformedSpec, decoded
from features.nova.core.selections import selections
from features.nova.core.translation import (
    BridgeOptions,
    CannotJudge,
    GroupOfRequest,
    NoSuchDestination,
    Translated,
    translated,
)
from features.nova.messages import HostsAsked
from features.nova.tests.support.nova_builders import (
    CELL,
    a_cloud,
    a_destination,
    a_flavor,
    a_host,
    a_spec,
    an_aggregate,
)
from tests.support.ids import uid

CLOUD = a_cloud(
    a_host(1),
    a_host(2),
    a_host(3, host="ironic", node="node-3"),
    a_host(4, host="ironic", node="node-4"),
    aggregates=(an_aggregate(1, "compute-1", availability_zone="az1"),),
)


def translate(spec: dict[str, Any], cloud: NovaCloud = CLOUD, **options: Any) -> Translated:
    alternates = options.pop("wants_alternates", True)
    return translated(
        decoded(spec), [uid(7)], cloud, BridgeOptions(**options), request=uid(8), wants_alternates=alternates
    )


def asked(spec: dict[str, Any], cloud: NovaCloud = CLOUD, **options: Any) -> HostsAsked:
    return translate(spec, cloud, **options).question


def test_flavor_image_and_owner_are_those_of_the_request() -> None:
    image = {
        "hw_disk_bus": "virtio",
        "hw_cpu_cores": 2,
        "hw_boot_menu": True,
        "traits_required": ["CUSTOM_A"],
    }
    request = asked(a_spec(image=image)).request
    assert request.flavor == Flavor(name="m1", vcpus=2, memory_mb=512, disk_gb=10 + 1 + 2)
    assert request.image is not None
    assert request.image.properties == {
        "hw_disk_bus": "virtio", "hw_cpu_cores": "2", "hw_boot_menu": "true", "disk_format": "qcow2"
    }  # fmt: skip
    assert request.image.traits_required == ("CUSTOM_A",)
    assert (request.project, request.user, request.instances) == ("p1", "u1", (uid(7),))
    assert request.alternates == 2


def test_an_instance_on_a_volume_needs_no_root_disk() -> None:
    assert asked(a_spec(is_bfv=True)).request.flavor.disk_gb == 1 + 2


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"availability_zone": "az1"}, {"zone": "az1"}),
        ({"availability_zone": "nova"}, {"zone": ""}),  # no aggregate has it: no restriction, as in Nova
        ({"ignore_hosts": ["COMPUTE-1", "gone"]}, {"ignore_hosts": (uid(1, "a"),)}),
        ({"force_hosts": ["compute-2"]}, {"forced_host": uid(2, "a")}),
        ({"force_hosts": ["ironic"]}, {"forced_host": "ironic"}),  # any of its nodes
        ({"force_hosts": ["ironic"], "force_nodes": ["node-4"]}, {"forced_host": uid(4, "a")}),
        ({"requested_destination": a_destination(host="compute-1")}, {"wanted_host": uid(1, "a")}),
        ({"requested_destination": a_destination(cell=CELL)}, {"cell": "cell1"}),
        ({"requested_destination": a_destination(cell=CELL, allow_cross_cell_move=True)}, {"cell": ""}),
        (
            {"requested_destination": a_destination(aggregates=[f"{uid(1)},{uid(2)}", uid(3)])},
            {"aggregates": ((uid(1), uid(2)), (uid(3),))},
        ),
        (
            {"requested_destination": a_destination(forbidden_aggregates=[uid(4)])},
            {"not_aggregates": (uid(4),)},
        ),
        (
            {"request_level_params": versioned("RequestLevelParams", "1.1", {"root_required": ["CUSTOM_A"]})},
            {"root_required": ("CUSTOM_A",)},
        ),
        (
            {"flavor": a_flavor(extra_specs={"accel:device_profile": "fpga", "hw:boot_menu": "true"})},
            {"root_required": ("COMPUTE_ACCELERATORS",)},
        ),
    ],
)
def test_demands_on_the_host_are_translated(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    request = asked(a_spec(**fields)).request
    assert {name: getattr(request, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("extra_specs", "properties", "expected"),
    [
        (
            {"hw:tpm_version": "2.0"}, {},
            {"hw:tpm_version": "2.0", "hw:tpm_model": "tpm-tis", "hw:tpm_secret_security": "user"},
        ),
        ({}, {"hw_tpm_version": "2.0", "hw_tpm_model": "tpm-crb"}, {"hw:tpm_secret_security": "user"}),
        (
            {"hw:tpm_version": "2.0", "hw:tpm_model": "tpm-crb", "hw:tpm_secret_security": "host"}, {},
            {"hw:tpm_version": "2.0", "hw:tpm_model": "tpm-crb", "hw:tpm_secret_security": "host"},
        ),
        ({"hw:sound_model": "ich9", "hw:viommu_model": "virtio"}, {}, {}),
        ({"hw:sound_model": "virtio"}, {}, {"hw:sound_model": "virtio"}),
        ({"hw:firmware_stateless": "true"}, {}, {}),  # Nova reads it from images only
        # What Nova ignores with a warning, or reads as false.
        ({"resources:VCPU": "-1", "resources:MEMORY_MB": "much", "resources:vcpus": "1"}, {}, {}),
        ({"resources:VCPU": " 4 ", f"resources{'1' * 65}:VGPU": "1"}, {}, {"resources:VCPU": "4"}),
        ({"trait:CUSTOM_A": "forbade", "group_policy": "any"}, {}, {}),
        ({"hw:mem_encryption": "T", "hw:virtio_packed_ring": "y", "hw:ephemeral_encryption": "maybe"}, {},
         {"hw:mem_encryption": "true", "hw:virtio_packed_ring": "true", "hw:ephemeral_encryption": "false"}),
        # What berth reads in addition.
        ({"trait:CUSTOM_A": "preferred:2", "trait:CUSTOM_B": "any1", "resources:VGPU": "preferred:1"}, {},
         {"trait:CUSTOM_A": "preferred:2", "trait:CUSTOM_B": "any1", "resources:VGPU": "preferred:1"}),
        ({"hw:maxphysaddr_bits": "46"}, {}, {"capabilities:cpu_info:maxphysaddr:bits": ">= 46"}),
    ],
)  # fmt: skip
def test_extra_specs_demand_what_nova_demands(
    extra_specs: dict[str, str], properties: dict[str, Any], expected: dict[str, str]
) -> None:
    request = asked(a_spec(a_flavor(extra_specs=extra_specs), image=properties)).request
    assert request.flavor.extra_specs == expected


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({"hw_sound_model": "ich9", "hw_viommu_model": "intel"}, {}),
        ({"hw_sound_model": "virtio"}, {"hw_sound_model": "virtio"}),
        ({"hw_firmware_stateless": True, "hw_firmware_type": "bios"}, {"hw_firmware_type": "bios"}),
        (
            {"hw_firmware_stateless": True, "hw_firmware_type": "uefi"},
            {"hw_firmware_stateless": "true", "hw_firmware_type": "uefi"},
        ),
        ({"img_hv_requested_version": ">=6.0", "hw_maxphysaddr_bits": 42}, {}),
        (
            {"img_hv_requested_version": ">=6.0", "img_hv_type": "kvm"},
            {"img_hv_requested_version": ">=6.0", "img_hv_type": "kvm"},
        ),
    ],
)
def test_properties_of_images_demand_what_nova_demands(
    properties: dict[str, Any], expected: dict[str, str]
) -> None:
    image = asked(a_spec(image=properties)).request.image
    assert image is not None
    assert image.properties == {**expected, "disk_format": "qcow2"}


@pytest.mark.parametrize(
    ("extra_specs", "properties"),
    [({"hw:pci_numa_affinity_policy": "socket"}, {}), ({}, {"hw_pci_numa_affinity_policy": "socket"})],
)
def test_affinity_to_a_socket_demands_its_trait_without_a_device(
    extra_specs: dict[str, str], properties: dict[str, str]
) -> None:
    request = asked(a_spec(a_flavor(extra_specs=extra_specs), image=properties)).request
    assert request.root_required == ("COMPUTE_SOCKET_PCI_NUMA_AFFINITY",)


def test_hints_name_instances_and_networks() -> None:
    hints = {
        "same_host": [uid(1)],
        "different_host": [uid(2), uid(3)],
        "build_near_host_ip": ["10.0.0.1"],
        "cidr": ["/8"],
    }
    found = asked(a_spec(scheduler_hints=hints)).request.hints
    assert (found.same_host, found.different_host) == ((uid(1),), (uid(2), uid(3)))
    assert (found.build_near_host_ip, found.cidr) == ("10.0.0.1", "/8")


def test_ports_and_accelerators_are_groups_of_the_request() -> None:
    port = {
        "resources": {"NET_BW_EGR_KILOBIT_PER_SEC": 1000}, "required_traits": ["CUSTOM_PHYSNET_1"],
        "requester_id": uid(6), "use_same_provider": True,
    }  # fmt: skip
    request = asked(a_spec(requested_resources=[versioned("RequestGroup", "1.3", port)])).request
    assert request.groups == (
        ResourceGroup(
            suffix=uid(6), resources={"NET_BW_EGR_KILOBIT_PER_SEC": 1000}, required=("CUSTOM_PHYSNET_1",)
        ),
    )


def test_a_server_group_has_its_policy_limit_and_members() -> None:
    group = versioned(
        "InstanceGroup",
        "1.11",
        {
            "uuid": uid(9), "name": "g", "policy": "anti-affinity", "project_id": "p1",
            "_rules": {"max_server_per_host": "3"}, "members": [uid(7), uid(1)], "hosts": ["compute-1"],
        },
    )  # fmt: skip
    found = translate(a_spec(instance_group=group))
    assert found.group == GroupOfRequest(
        id=uid(9), policy="anti-affinity", max_per_host=3, project="p1", members=(uid(7), uid(1))
    )


def test_the_owner_trait_is_required_once_all_computes_set_it() -> None:
    assert asked(a_spec(), a_cloud(a_host(1, version=73), a_host(2, version=75))).request.root_required == (
        "OWNER_NOVA",
    )
    assert asked(a_spec(), a_cloud(a_host(1, version=72), a_host(2, version=75))).request.root_required == ()


def test_a_rebuild_only_checks_its_host() -> None:
    hints = {"_nova_check_type": ["rebuild"], "same_host": [uid(7)]}
    flavor = a_flavor(extra_specs={"hw:tpm_version": "2.0"})
    spec = a_spec(flavor, image={}, scheduler_hints=hints, force_hosts=["compute-1"])
    question = asked(spec)
    assert (question.do, question.request.forced_host) == ("check", uid(1, "a"))
    assert question.request.alternates == 0
    assert question.request.hints == Hints()
    assert question.request.flavor.extra_specs == {}


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"numa_topology": versioned("InstanceNUMATopology", "1.3", {"cells": []})}, "NUMA topology"),
        (
            {
                "pci_requests": {
                    "requests": [{"request_id": uid(1), "alias_name": "gpu", "requester_id": None}]
                }
            },
            "alias 'gpu'",
        ),
        ({"pci_requests": {"requests": [{"request_id": uid(1), "requester_id": "port-1"}]}}, "port port-1"),
        ({"instance_group": {"uuid": uid(9), "policy": "nearby"}}, "nearby"),
    ],
)
def test_what_placement_cannot_decide_is_named(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(CannotJudge, match=why):
        translate(a_spec(**fields))


def test_persistent_memory_is_refused_with_a_reason_of_its_own() -> None:
    """Nova gives a guest with persistent memory a NUMA topology of one cell."""
    topology = versioned("InstanceNUMATopology", "1.3", {"cells": []})
    spec = a_spec({"extra_specs": {"hw:pmem": "4GB"}}, numa_topology=topology)
    with pytest.raises(CannotJudge, match="persistent memory") as refused:
        translate(spec)
    assert "pinned" not in str(refused.value)


def test_a_pci_device_that_is_requested_from_placement_is_decided() -> None:
    device = versioned(
        "RequestGroup", "1.3", {"resources": {"CUSTOM_PCI_10DE": 1}, "requester_id": f"{uid(1)}-0"}
    )
    pci = {"requests": [{"request_id": uid(1), "alias_name": "gpu"}]}
    specs = {"pci_passthrough:alias": "gpu:1"}
    request = asked(
        a_spec(a_flavor(extra_specs=specs), requested_resources=[device], pci_requests=pci)
    ).request
    assert request.flavor.extra_specs == {}
    assert [group.suffix for group in request.groups] == [f"{uid(1)}-0"]


@pytest.mark.parametrize("hint", ["same_host", "different_host"])
def test_a_moving_instance_may_be_named_by_its_own_hint(hint: str) -> None:
    request = asked(a_spec(scheduler_hints={hint: [uid(7), uid(9)]})).request
    assert getattr(request.hints, hint) == (uid(9),)


def test_a_named_host_without_a_cell_is_refused_with_the_command_that_maps_it() -> None:
    cloud = replace(CLOUD, unmapped={uid(9, "a"): a_host(9)})
    with pytest.raises(NoSuchDestination, match=r"compute-9: .* run nova-manage cell_v2 discover_hosts"):
        translate(a_spec(force_hosts=["compute-9"]), cloud)


def test_routed_networks_are_undecided_only_if_nova_uses_their_segments() -> None:
    networks = versioned("NetworkRequestList", "1.1", {"objects": [{"network_id": uid(1)}]})
    assert asked(a_spec(requested_networks=networks))
    with pytest.raises(CannotJudge, match="routed networks"):
        translate(a_spec(requested_networks=networks), routed_networks=True)


@pytest.mark.parametrize(
    "fields",
    [
        {"force_hosts": ["none"]},
        {"force_hosts": ["compute-1"], "force_nodes": ["node-4"]},
        {"requested_destination": a_destination(host="none")},
        {"requested_destination": a_destination(cell=uid(5))},
    ],
)
def test_an_unknown_destination_is_an_error(fields: dict[str, Any]) -> None:
    with pytest.raises(NoSuchDestination):
        translate(a_spec(**fields))


def test_a_malformed_request_names_its_field() -> None:
    with pytest.raises(MalformedSpec, match="flavor"):
        decoded({"nova_object.data": {"flavor": 7}})


def test_names_of_cells_that_berth_cannot_use_are_replaced_by_their_ids() -> None:
    assert NovaCell(CELL, "cell1").berth_name == "cell1"
    assert NovaCell(CELL, "my cell.1").berth_name == CELL


def a_build(mappings: dict[str, tuple[str, ...]] | None = None) -> BuildPlaced:
    def selection(number: int) -> Selection:
        root = uid(number, "a")
        return Selection(
            root=root, host="x", agent="nova", choice=Choice({root: {"VCPU": 2}}), mappings=mappings or {}
        )

    spec = BuildSpec(flavor=Flavor(name="m1"))
    return BuildPlaced(
        build=uid(7),
        request=uid(8),
        cell="cell1",
        chosen=selection(1),
        generation=1,
        alternates=(selection(3),),
        spec=spec,
    )


def test_selections_carry_host_cell_zone_and_a_claimable_request() -> None:
    [[chosen, alternate]] = selections([a_build()], ["port-1"], CLOUD, "nova")
    assert chosen["nova_object.name"] == "Selection"
    found = plain(chosen)
    request = msgspec.json.decode(found.pop("allocation_request"))
    assert request == {
        "allocations": {uid(1, "a"): {"resources": {"VCPU": 2}}},
        "mappings": {"": [uid(1, "a")], "port-1": [uid(1, "a")]},
    }
    assert found == {
        "compute_node_uuid": uid(1, "a"), "cell_uuid": CELL,
        "service_host": "compute-1", "nodename": "compute-1",
        "limits": {"numa_topology": None, "vcpu": None, "disk_gb": None, "memory_mb": None},
        "allocation_request_version": "1.36", "availability_zone": "az1",
    }  # fmt: skip
    assert (plain(alternate)["service_host"], plain(alternate)["nodename"]) == ("ironic", "node-3")
    assert plain(alternate)["availability_zone"] == "nova"


def test_providers_of_groups_are_those_of_the_claim() -> None:
    mappings: dict[str, tuple[str, ...]] = {"": (uid(1, "a"),), "port-1": (uid(11, "a"),)}
    [[chosen, _]] = selections([a_build(mappings)], ["port-1"], CLOUD, "nova")
    request = msgspec.json.decode(plain(chosen)["allocation_request"])
    assert request["mappings"] == {"": [uid(1, "a")], "port-1": [uid(11, "a")]}


def test_choosing_hosts_is_an_act_on_the_instances() -> None:
    question = asked(a_spec())
    found = act_of(question)
    assert found is not None and found.name == "choose hosts"
    assert describe(question).id == uid(7)
    assert ids_of([question]) == ({uid(7), uid(8)}, set())
