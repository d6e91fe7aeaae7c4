"""Queries for flavors and images: each rule of the grammar with its result."""

from dataclasses import replace as but
from typing import Any

import pytest

from bus.host_health import DISABLED
from bus.requests import Flavor, Image
from scheduler_worker.core.request import seconds_of
from tests.support.alternatives import OPTIONS, alternatives, asked, flavor, groups
from tests.support.ids import uid
from tests.support.scheduler_builders import METAL, SMALL

REST = "VCPU 4, MEMORY_MB 4096, DISK_GB 5"
NUMA = {"hw:numa_nodes": "2"}
PINNED = {"hw:cpu_policy": "dedicated"}


@pytest.mark.parametrize(
    ("specs", "expected"),
    [
        ({}, {"": REST}),
        ({"resources:VCPU": "7"}, {"": "VCPU 7, MEMORY_MB 4096, DISK_GB 5"}),
        ({"resources:PCPU": "2"}, {"": "PCPU 2, MEMORY_MB 4096, DISK_GB 5"}),
        ({"resources:VGPU": "1", "resources:DISK_GB": "0"}, {"": "VGPU 1, VCPU 4, MEMORY_MB 4096"}),
        ({"resources1:VGPU": "2"}, {"": REST, "1": "VGPU 2"}),
        ({"resources1:VCPU": "2"}, {"": "MEMORY_MB 4096, DISK_GB 5", "1": "VCPU 2"}),
        ({"resources1:VGPU": "0"}, {"": REST}),
        # Traits.
        ({"trait:A": "required", "trait:B": "forbidden"}, {"": f"{REST}, +A, -B"}),
        ({"trait:A": "any", "trait:B": "any"}, {"": f"{REST}, A|B"}),
        ({"trait:A": "any1", "trait:B": "any2", "trait:C": "any2"}, {"": f"{REST}, A, B|C"}),
        ({"resources_n:VGPU": "1", "trait_n:A": "any", "trait_n:B": "any", "trait_n:C": "forbidden"},
         {"": REST, "_n": "VGPU 1, -C, A|B"}),
        ({"resources_c:VCPU": "2", "trait_n:A": "required", "same_subtree": "_n,_c"},
         {"": "MEMORY_MB 4096, DISK_GB 5", "_c": "VCPU 2", "_n": "+A"}),
        (METAL.extra_specs, {"": "CUSTOM_BAREMETAL 1"}),
        ({"hw:cpu_policy": "shared"}, {"": REST}),
        (PINNED, {"": "DISK_GB 5", "_numa0": "PCPU 4, MEMORY_MB 4096"}),
        ({"hw:cpu_policy": "mixed", "hw:cpu_dedicated_mask": "0-2,^1"},
         {"": "DISK_GB 5", "_numa0": "VCPU 2, PCPU 2, MEMORY_MB 4096"}),
        (PINNED | {"hw:emulator_threads_policy": "isolate"},
         {"": "DISK_GB 5", "_numa0": "PCPU 5, MEMORY_MB 4096"}),
        (PINNED | {"hw:emulator_threads_policy": "share"},
         {"": "DISK_GB 5", "_numa0": "PCPU 4, MEMORY_MB 4096"}),
        # NUMA cells.
        (NUMA, {"": "DISK_GB 5", "_numa0": "VCPU 2, MEMORY_MB 2048", "_numa1": "VCPU 2, MEMORY_MB 2048"}),
        (
            NUMA
            | {
                "hw:numa_cpus.0": "0-2",
                "hw:numa_cpus.1": "3",
                "hw:numa_mem.0": "3072",
                "hw:numa_mem.1": "1024",
            },
            {"": "DISK_GB 5", "_numa0": "VCPU 3, MEMORY_MB 3072", "_numa1": "VCPU 1, MEMORY_MB 1024"},
        ),
        (NUMA | {"hw:cpu_policy": "mixed", "hw:cpu_dedicated_mask": "0"},
         {"": "DISK_GB 5", "_numa0": "VCPU 1, PCPU 1, MEMORY_MB 2048", "_numa1": "VCPU 2, MEMORY_MB 2048"}),
        (PINNED | NUMA | {"hw:emulator_threads_policy": "isolate"},
         {"": "DISK_GB 5", "_numa0": "PCPU 3, MEMORY_MB 2048", "_numa1": "PCPU 2, MEMORY_MB 2048"}),
        ({"hw:numa_nodes": "1", "trait_numa0:A": "required", "resources_numa0:VGPU": "1"},
         {"": "DISK_GB 5", "_numa0": "VGPU 1, VCPU 4, MEMORY_MB 4096, +A"}),
        # Pages instead of memory.
        ({"hw:mem_page_size": "small"}, {"": "DISK_GB 5", "_numa0": "VCPU 4, MEMORY_MB 4096"}),
        ({"hw:mem_page_size": "4"}, {"": "DISK_GB 5", "_numa0": "VCPU 4, MEMORY_MB 4096"}),
        ({"hw:mem_page_size": "2MB"}, {"": "DISK_GB 5", "_numa0": "VCPU 4, CUSTOM_MEMORY_PAGES_2MB 2048"}),
        ({"hw:mem_page_size": "2048"}, {"": "DISK_GB 5", "_numa0": "VCPU 4, CUSTOM_MEMORY_PAGES_2MB 2048"}),
        ({"hw:mem_page_size": "64kb"}, {"": "DISK_GB 5", "_numa0": "VCPU 4, CUSTOM_MEMORY_PAGES_64KB 65536"}),
        (
            NUMA | {"hw:mem_page_size": "1GB"},
            {
                "": "DISK_GB 5",
                "_numa0": "VCPU 2, CUSTOM_MEMORY_PAGES_1GB 2",
                "_numa1": "VCPU 2, CUSTOM_MEMORY_PAGES_1GB 2",
            },
        ),
        # Devices, each in a group.
        (
            {"pci_passthrough:alias": "gpu:2, fpga"},
            {
                "": REST,
                "_pci0_gpu": "CUSTOM_GPU 1, +CUSTOM_HBM",
                "_pci1_gpu": "CUSTOM_GPU 1, +CUSTOM_HBM",
                "_pci2_fpga": "FPGA 1",
            },
        ),
        ({"hw:mem_encryption": "true"}, {"": REST, "_mem_encryption": "MEM_ENCRYPTION_CONTEXT 1"}),
        ({"hw:mem_encryption": "yes", "hw:mem_encryption_model": "amd-sev-es"},
         {"": REST, "_mem_encryption": "MEM_ENCRYPTION_CONTEXT 1, +HW_CPU_X86_AMD_SEV_ES"}),
        ({"hw:mem_encryption": "false"}, {"": REST}),
        ({"hw:pmem": "6GB,6GB,big"},
         {"": f"CUSTOM_PMEM_NAMESPACE_6GB 2, CUSTOM_PMEM_NAMESPACE_BIG 1, {REST}"}),
        # Other people's business.
        ({"quota:cpu_shares": "1", "os:x": "1", "capabilities:boot_mode": "uefi", "hw:cpu_cores": "2"},
         {"": REST}),
    ],
    ids=str,
)  # fmt: skip
def test_resources_and_traits_of_extra_specs(specs: dict[str, str], expected: dict[str, str]) -> None:
    assert groups(asked(specs)) == expected


@pytest.mark.parametrize(
    ("specs", "required", "forbidden"),
    [
        (PINNED | {"hw:cpu_thread_policy": "require"}, "HW_CPU_HYPERTHREADING", ""),
        (PINNED | {"hw:cpu_thread_policy": "isolate"}, "", "HW_CPU_HYPERTHREADING"),
        (PINNED | {"hw:cpu_thread_policy": "prefer"}, "", ""),
        (
            {"hw:tpm_version": "2.0", "hw:tpm_model": "tpm-crb"},
            "COMPUTE_SECURITY_TPM_2_0 COMPUTE_SECURITY_TPM_CRB",
            "",
        ),
        (
            {"hw:tpm_version": "1.2", "hw:tpm_secret_security": "host"},
            "COMPUTE_SECURITY_TPM_1_2 COMPUTE_SECURITY_TPM_SECRET_SECURITY_HOST",
            "",
        ),
        ({"os:secure_boot": "required"}, "COMPUTE_SECURITY_UEFI_SECURE_BOOT", ""),
        ({"os:secure_boot": "optional"}, "", ""),
        ({"hw:maxphysaddr_mode": "emulate"}, "COMPUTE_ADDRESS_SPACE_EMULATED", ""),
        ({"hw:viommu_model": "smmuv3"}, "COMPUTE_VIOMMU_MODEL_SMMUV3", ""),
        ({"hw:sound_model": "virtio"}, "COMPUTE_SOUND_MODEL_VIRTIO", ""),
        ({"hw:virtio_packed_ring": "true"}, "COMPUTE_NET_VIRTIO_PACKED", ""),
        ({"hw:virtio_packed_ring": "false"}, "", ""),
        ({"hw:firmware_stateless": "true"}, "COMPUTE_SECURITY_STATELESS_FIRMWARE", ""),
        (
            {"hw:ephemeral_encryption": "true", "hw:ephemeral_encryption_format": "luks"},
            "COMPUTE_EPHEMERAL_ENCRYPTION COMPUTE_EPHEMERAL_ENCRYPTION_LUKS",
            "",
        ),
        ({"pci_passthrough:alias": "fpga"}, "COMPUTE_SOCKET_PCI_NUMA_AFFINITY", ""),
        ({"resources1:VGPU": "1", "resources:VCPU": "0", "resources:MEMORY_MB": "0",
          "resources:DISK_GB": "0", "trait:A": "required", "trait:B": "forbidden"}, "A", "B"),
    ],
    ids=str,
)  # fmt: skip
def test_root_traits_of_extra_specs(specs: dict[str, str], required: str, forbidden: str) -> None:
    question = asked(specs)
    assert question.root_required == tuple(required.split())
    assert question.root_forbidden == tuple(sorted([*forbidden.split(), DISABLED]))


@pytest.mark.parametrize(
    ("specs", "same", "isolated"),
    [
        (NUMA, (), ("_numa0", "_numa1")),
        (PINNED, (), ()),
        (NUMA | {"group_policy": "isolate"}, (), ()),
        (
            NUMA | {"pci_passthrough:alias": "nic:3"},
            (("_numa0", "_pci0_nic"), ("_numa1", "_pci1_nic"), ("_numa0", "_pci2_nic")),
            ("_numa0", "_numa1"),
        ),
        ({"pci_passthrough:alias": "nic"}, (), ()),  # without cells it may be anywhere
        (PINNED | {"pci_passthrough:alias": "nic", "hw:pci_numa_affinity_policy": "legacy"}, (), ()),
        (
            PINNED | {"pci_passthrough:alias": "gpu", "hw:pci_numa_affinity_policy": "required"},
            (("_numa0", "_pci0_gpu"),),
            (),
        ),
        (PINNED | {"resources_v:VGPU": "1", "same_subtree": "_numa0, _v"}, (("_numa0", "_v"),), ()),
        (
            {"resources1:VGPU": "1", "resources2:VGPU": "1", "resources3:VGPU": "1"}
            | {"same_subtree": "1,2", "same_subtree2": "2,3, 2"},
            (("1", "2"), ("2", "3")),
            (),
        ),
    ],
    ids=str,
)
def test_same_subtree_and_isolation_of_groups(
    specs: dict[str, str], same: tuple[tuple[str, ...], ...], isolated: tuple[str, ...]
) -> None:
    question = asked(specs)
    assert (question.same_subtree, question.isolated) == (same, isolated)
    assert question.group_policy == specs.get("group_policy", "none")


@pytest.mark.parametrize(
    ("size", "image", "memory", "classes"),
    [
        ("large", None, 4096, ["CUSTOM_MEMORY_PAGES_1GB", "CUSTOM_MEMORY_PAGES_2MB"]),
        ("large", None, 3072, ["CUSTOM_MEMORY_PAGES_2MB"]),  # a gigabyte and a half for each cell
        ("any", None, 4096, ["CUSTOM_MEMORY_PAGES_1GB", "CUSTOM_MEMORY_PAGES_2MB", "MEMORY_MB"]),
        ("any", "large", 4096, ["CUSTOM_MEMORY_PAGES_1GB", "CUSTOM_MEMORY_PAGES_2MB"]),
        ("any", "small", 4096, ["MEMORY_MB"]),
        ("large", "2MB", 4096, ["CUSTOM_MEMORY_PAGES_2MB"]),
        ("large", "any", 4096, ["CUSTOM_MEMORY_PAGES_1GB", "CUSTOM_MEMORY_PAGES_2MB"]),
        ("1GB", "1gb", 4096, ["CUSTOM_MEMORY_PAGES_1GB"]),
    ],
)
def test_each_possible_page_size_is_an_alternative(
    size: str, image: str | None, memory: int, classes: list[str]
) -> None:
    properties = {} if image is None else {"hw_mem_page_size": image}
    ways = alternatives(
        flavor=flavor(NUMA | {"hw:mem_page_size": size}, memory_mb=memory),
        image=Image(name="i", properties=properties),
    )
    assert [list(way.question.groups[1].resources)[-1] for way in ways] == classes
    assert {way.alternative_index for way in ways} == {0}


IMAGE = {
    "hw_disk_bus": "scsi",
    "hw_vif_model": "ne2k-pci",
    "hw_architecture": "x86_64",
    "disk_format": "qcow2",
}


@pytest.mark.parametrize(
    ("switches", "root"),
    [
        ({}, ()),
        (
            {"image_metadata_traits": True},
            ("COMPUTE_NET_VIF_MODEL_NE2K_PCI", "COMPUTE_STORAGE_BUS_SCSI", "HW_ARCH_X86_64"),
        ),
        ({"image_type_traits": True}, ("COMPUTE_IMAGE_TYPE_QCOW2",)),
    ],
)
def test_demands_of_an_image(switches: dict[str, Any], root: tuple[str, ...]) -> None:
    image = Image(name="i", traits_required=("A",), properties=IMAGE | {"trait:B": "required"})
    (alternative,) = alternatives(
        but(OPTIONS, **switches), image=image, flavor=flavor({"trait:C": "required"})
    )
    assert groups(alternative.question) == {"": f"{REST}, +A, +B, +C"}
    assert alternative.question.root_required == root


def test_an_image_may_say_what_its_flavor_does_not() -> None:
    image = Image(name="i", properties={"hw_cpu_policy": "dedicated", "hw_numa_nodes": "2"})
    (alternative,) = alternatives(image=image, flavor=flavor({"hw:cpu_policy": "Dedicated"}))
    assert groups(alternative.question)["_numa1"] == "PCPU 2, MEMORY_MB 2048"


def test_flavors_that_would_do_instead_come_in_their_order() -> None:
    gold, silver = flavor({"resources:CUSTOM_GOLD": "1"}), flavor({"resources:CUSTOM_SILVER": "1"})
    pages = flavor({"hw:mem_page_size": "large"})
    ways = alternatives(flavor=gold, or_else=(pages, silver))
    assert [(way.alternative_index, way.flavor) for way in ways] == [
        (0, gold),
        (1, pages),
        (1, pages),
        (2, silver),
    ]


@pytest.mark.parametrize(
    ("request_fields", "expected"),
    [
        ({"zone": "z"}, {"zone": "z"}),
        ({"cell": "c1"}, {"cell": "c1"}),
        ({"aggregates": ((uid(1, "b"), uid(2, "b")),)}, {"root_member_of": ((uid(1, "b"), uid(2, "b")),)}),
        ({"not_aggregates": (uid(1, "b"),)}, {"root_not_member_of": (uid(1, "b"),)}),
        ({"wanted_host": "host1"}, {"roots": (uid(1, "c"),)}),
        ({"forced_host": uid(1, "c")}, {"roots": (uid(1, "c"),)}),
        ({"forced_host": "rack"}, {"roots": (uid(3, "c"), uid(4, "c"))}),
        ({"forced_host": uid(3, "c"), "wanted_host": "rack"}, {"roots": (uid(3, "c"),)}),
        ({"ignore_hosts": ("host1", uid(4, "c"))}, {"not_roots": (uid(1, "c"), uid(4, "c"))}),
        ({"flavor": METAL}, {}),
    ],
    ids=str,
)
def test_hosts_and_zones_that_a_request_permits(
    request_fields: dict[str, Any], expected: dict[str, Any]
) -> None:
    (alternative,) = alternatives(**request_fields)
    question = alternative.question
    fields = ("zone", "cell", "root_member_of", "root_not_member_of", "roots", "not_roots")
    assert {name: getattr(question, name) for name in fields if getattr(question, name)} == expected


@pytest.mark.parametrize(
    ("specs", "wanted", "preferred"),
    [
        ({}, {}, {}),
        ({"trait:A": "preferred", "trait:B": "preferred:-2.5"}, {}, {"A": 1.0, "B": -2.5}),
        ({"trait:A": "preferred"}, {"A": 3.0, "C": 1.0}, {"A": 3.0, "C": 1.0}),
    ],
)
def test_traits_that_are_only_preferred(
    specs: dict[str, str], wanted: dict[str, float], preferred: dict[str, float]
) -> None:
    (alternative,) = alternatives(flavor=flavor(specs), preferred_traits=wanted)
    assert dict(alternative.preferred) == preferred
    assert not alternative.question.groups[0].required


def test_requests_that_ask_for_the_same_have_one_question() -> None:
    (one,), (other,) = alternatives(project="p"), alternatives(project="q", instances=3, reply_to="me")
    assert one.question is other.question
    (elsewhere,) = alternatives(zone="z")
    assert elsewhere.question is not one.question
    assert groups(one.question) == {"": "VCPU 1, MEMORY_MB 1024, DISK_GB 10"}
    assert one.flavor == SMALL and isinstance(one.flavor, Flavor)


@pytest.mark.parametrize(
    ("wait", "seconds"), [("", 0), ("90s", 90), ("30m", 1800), ("12h", 43_200), ("7d", 604_800)]
)
def test_durations_are_read(wait: str, seconds: float) -> None:
    assert seconds_of(wait) == seconds
