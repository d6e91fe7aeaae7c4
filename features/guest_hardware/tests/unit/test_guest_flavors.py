"""Flavors and images that require NUMA cells, pages, devices and traits: each rule with its result."""

import tracemalloc
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from bus.host_health import DISABLED
from bus.queries import FindCandidates
from bus.requests import Image
from bus.vocabulary import MAX_INT
from features.guest_hardware.core.aliases import PciAlias
from features.guest_hardware.request_reader import request_reader
from scheduler_worker.core.extension import Alternative, Unreadable
from scheduler_worker.testing import RequestOptions
from tests.support import rule_builders
from tests.support.rule_builders import flavor, groups

ALIASES = {
    "gpu": PciAlias("CUSTOM_GPU", ("CUSTOM_HBM",)),
    "nic": PciAlias("CUSTOM_NIC", numa_policy="required"),
    "fpga": PciAlias("FPGA", numa_policy="socket"),
    "card": PciAlias("CUSTOM_CARD", numa_policy="preferred"),
}


def options(image_traits: Collection[str] = ()) -> RequestOptions:
    return RequestOptions(readers=(request_reader(ALIASES, image_traits),))


OPTIONS = options()


def alternatives(options: RequestOptions = OPTIONS, **request: Any) -> tuple[Alternative, ...]:
    return rule_builders.alternatives(options, **request)


def refusal(**request: Any) -> str:
    with pytest.raises(Unreadable) as refused:
        alternatives(**request)
    return str(refused.value)


def image(**properties: str) -> Image:
    return Image(name="i", properties=properties)


def asked(specs: Mapping[str, str], **figures: int) -> FindCandidates:
    (alternative,) = alternatives(flavor=flavor(specs, **figures))
    return alternative.question


REST = "VCPU 4, MEMORY_MB 4096, DISK_GB 5"
NUMA = {"hw:numa_nodes": "2"}
PINNED = {"hw:cpu_policy": "dedicated"}
MIXED = {"hw:cpu_policy": "mixed"}
NEAR = {"pci_passthrough:alias": "gpu", "hw:pci_numa_affinity_policy": "preferred"}


@pytest.mark.parametrize(
    ("specs", "expected"),
    [
        ({"hw:cpu_policy": "shared"}, {"": REST}),
        (PINNED, {"": "DISK_GB 5", "_numa0": "PCPU 4, MEMORY_MB 4096"}),
        ({"hw:cpu_policy": "mixed", "hw:cpu_dedicated_mask": "0-2,^1"},
         {"": "DISK_GB 5", "_numa0": "VCPU 2, PCPU 2, MEMORY_MB 4096"}),
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
        ({"hw:mem_page_size": "2MB"}, {"": "DISK_GB 5", "_numa0": "VCPU 4, CUSTOM_MEMORY_PAGES_2MB 2048"}),
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
        ({"hw:mem_encryption": "true"},
         {"": REST, "_mem_encryption": "MEM_ENCRYPTION_CONTEXT 1, +HW_CPU_X86_AMD_SEV"}),
        ({"hw:mem_encryption": "true", "hw:mem_encryption_model": "intel-tdx"},
         {"": REST, "_mem_encryption": "MEM_ENCRYPTION_CONTEXT 1, +HW_CPU_X86_INTEL_TDX"}),
        ({"hw:mem_encryption_model": "amd-sev"}, {"": REST}),
        ({"hw:mem_encryption": "yes", "hw:mem_encryption_model": "amd-sev-es"},
         {"": REST, "_mem_encryption": "MEM_ENCRYPTION_CONTEXT 1, +HW_CPU_X86_AMD_SEV_ES"}),
        ({"hw:pmem": "6GB,6GB,big"},
         {"": f"CUSTOM_PMEM_NAMESPACE_6GB 2, CUSTOM_PMEM_NAMESPACE_BIG 1, {REST}"}),
        # Of the hypervisor, and of others.
        ({"hw:cpu_cores": "2", "os:x": "1"}, {"": REST}),
    ],
    ids=str,
)  # fmt: skip
def test_resources_of_extra_specs(specs: dict[str, str], expected: dict[str, str]) -> None:
    assert groups(asked(specs)) == expected


@pytest.mark.parametrize(
    ("specs", "required", "forbidden"),
    [
        (PINNED | {"hw:cpu_thread_policy": "require"}, "HW_CPU_HYPERTHREADING", ""),
        (PINNED | {"hw:cpu_thread_policy": "isolate"}, "", "HW_CPU_HYPERTHREADING"),
        ({"hw:tpm_version": "2.0", "hw:tpm_model": "tpm-crb"},
         "COMPUTE_SECURITY_TPM_2_0 COMPUTE_SECURITY_TPM_CRB", ""),
        ({"hw:tpm_version": "1.2", "hw:tpm_secret_security": "host"},
         "COMPUTE_SECURITY_TPM_1_2 COMPUTE_SECURITY_TPM_SECRET_SECURITY_HOST", ""),
        ({"os:secure_boot": "required"}, "COMPUTE_SECURITY_UEFI_SECURE_BOOT", ""),
        ({"os:secure_boot": "optional"}, "", ""),
        ({"hw:maxphysaddr_mode": "emulate"}, "COMPUTE_ADDRESS_SPACE_EMULATED", ""),
        ({"hw:viommu_model": "smmuv3"}, "COMPUTE_VIOMMU_MODEL_SMMUV3", ""),
        ({"hw:virtio_packed_ring": "true"}, "COMPUTE_NET_VIRTIO_PACKED", ""),
        ({"hw:firmware_stateless": "true"}, "COMPUTE_SECURITY_STATELESS_FIRMWARE", ""),
        ({"hw:ephemeral_encryption": "true", "hw:ephemeral_encryption_format": "luks"},
         "COMPUTE_EPHEMERAL_ENCRYPTION COMPUTE_EPHEMERAL_ENCRYPTION_LUKS", ""),
        # Without what they belong to, they have no effect, as in Nova.
        ({"hw:ephemeral_encryption_format": "luks"}, "", ""),
        ({"hw:ephemeral_encryption": "false", "hw:ephemeral_encryption_format": "luks"}, "", ""),
        ({"hw:tpm_model": "tpm-tis", "hw:tpm_secret_security": "host"}, "", ""),
        ({"pci_passthrough:alias": "fpga"}, "COMPUTE_SOCKET_PCI_NUMA_AFFINITY", ""),
    ],
    ids=str,
)  # fmt: skip
def test_traits_of_the_host_by_extra_specs(specs: dict[str, str], required: str, forbidden: str) -> None:
    question = asked(specs)
    assert question.root_required == tuple(required.split())
    assert question.root_forbidden == tuple(sorted([*forbidden.split(), DISABLED]))


@pytest.mark.parametrize(
    ("specs", "same", "isolated"),
    [
        (NUMA, (), ("_numa0", "_numa1")),
        (PINNED, (), ()),
        (NUMA | {"group_policy": "isolate"}, (), ()),
        (NUMA | {"pci_passthrough:alias": "nic:3"},
         (("_numa0", "_pci0_nic"), ("_numa1", "_pci1_nic"), ("_numa0", "_pci2_nic")), ("_numa0", "_numa1")),
        ({"pci_passthrough:alias": "nic"}, (), ()),  # without cells it may be anywhere
        (PINNED | {"pci_passthrough:alias": "nic", "hw:pci_numa_affinity_policy": "legacy"}, (), ()),
        (PINNED | {"pci_passthrough:alias": "gpu", "hw:pci_numa_affinity_policy": "required"},
         (("_numa0", "_pci0_gpu"),), ()),
        (PINNED | {"resources_v:VGPU": "1", "same_subtree": "_numa0, _v"}, (("_numa0", "_v"),), ()),
    ],
    ids=str,
)  # fmt: skip
def test_cells_are_isolated_and_devices_are_near_them(
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
    asked_for = flavor(NUMA | {"hw:mem_page_size": size}, memory_mb=memory)
    ways = alternatives(flavor=asked_for, image=Image(name="i", properties=properties))
    assert [list(way.question.groups[1].resources)[-1] for way in ways] == classes
    assert {way.alternative_index for way in ways} == {0}


IMAGE = {
    "hw_disk_bus": "scsi",
    "hw_vif_model": "ne2k-pci",
    "hw_architecture": "x86_64",
    "disk_format": "qcow2",
}


@pytest.mark.parametrize(
    ("kinds", "root"),
    [
        ((), ()),
        (("metadata",),
         ("COMPUTE_NET_VIF_MODEL_NE2K_PCI", "COMPUTE_STORAGE_BUS_SCSI", "HW_ARCH_X86_64")),
        (("type",), ("COMPUTE_IMAGE_TYPE_QCOW2",)),
    ],
)  # fmt: skip
def test_demands_of_an_image(kinds: tuple[str, ...], root: tuple[str, ...]) -> None:
    image = Image(name="i", traits_required=("A",), properties=IMAGE | {"trait:B": "required"})
    asked_for = flavor({"trait:C": "required"})
    (alternative,) = alternatives(options(kinds), image=image, flavor=asked_for)
    assert groups(alternative.question) == {"": f"{REST}, +A, +B, +C"}
    assert alternative.question.root_required == root


def test_preferred_numa_affinity_is_tried_with_each_page_size() -> None:
    found = alternatives(flavor=flavor(PINNED | NEAR | {"hw:mem_page_size": "any"}))
    near = [bool(each.question.same_subtree) for each in found]
    assert near == [True, False] * 3


@pytest.mark.parametrize(
    ("specs", "sentence"),
    [
        # Processors.
        ({"hw:cpu_policy": "own"},
         "flavor.extra_specs['hw:cpu_policy']: 'own' is none of shared, dedicated, mixed"),
        (PINNED | {"resources:PCPU": "2"}, "['resources:PCPU'], and flavor.extra_specs['hw:cpu_policy']"),
        (NUMA | {"resources1:MEMORY_MB": "2"}, "['resources1:MEMORY_MB'], and flavor.extra_specs['hw:numa_n"),
        ({"hw:mem_page_size": "2MB", "resources:CUSTOM_MEMORY_PAGES_2MB": "1"},
         "['resources:CUSTOM_MEMORY_PAGES_2MB'], and flavor.extra_specs['hw:mem_page_size']"),
        (MIXED, "mixed needs hw:cpu_dedicated_mask"),
        (MIXED | {"hw:cpu_dedicated_mask": "0-3"}, "must name some and not all of the 4 processors"),
        (MIXED | {"hw:cpu_dedicated_mask": "4"}, "there is no processor 4: the guest has 4"),
        (MIXED | {"hw:cpu_dedicated_mask": "a"}, "'a' is no list of processors (0-3,^1,6)"),
        (PINNED | {"hw:cpu_dedicated_mask": "1"}, "['hw:cpu_dedicated_mask']: only with hw:cpu_policy=mixed"),
        ({"hw:cpu_thread_policy": "require"}, "['hw:cpu_thread_policy']: only with hw:cpu_policy=dedicated"),
        ({"hw:emulator_threads_policy": "isolate"},
         "['hw:emulator_threads_policy']: only with hw:cpu_policy"),
        # NUMA cells.
        ({"hw:numa_nodes": "0"}, "'0' is no whole number from 1 to 64"),
        ({"hw:numa_nodes": "3"}, "flavor.vcpus: 4 does not divide by 3 (hw:numa_nodes): assign processors"),
        ({"hw:numa_cpus.0": "0"}, "['hw:numa_cpus.0']: only with hw:numa_nodes"),
        (NUMA | {"hw:numa_cpus.2": "0"}, "['hw:numa_cpus.2']: there are 2 cells (hw:numa_nodes)"),
        (NUMA | {"hw:numa_cpus.0": "0-3"}, "hw:numa_cpus.1 is missing: set it for every cell"),
        (NUMA | {"hw:numa_cpus.0": "0-1", "hw:numa_cpus.1": "2-3"}, "hw:numa_mem.0 is missing"),
        (
            NUMA
            | {"hw:numa_cpus.0": "0-1", "hw:numa_cpus.1": "1-3", "hw:numa_mem.0": "1", "hw:numa_mem.1": "1"},
            "must name each of the 4 processors (flavor.vcpus) once",
        ),
        (
            NUMA
            | {"hw:numa_cpus.0": "0-1", "hw:numa_cpus.1": "2-3", "hw:numa_mem.0": "1", "hw:numa_mem.1": "1"},
            "hw:numa_mem.0 to .1 are 2 together, and flavor.memory_mb is 4096",
        ),
        # Pages.
        ({"hw:mem_page_size": "huge"}, "'huge' is none of small, large, any and no size (2MB, 1GB)"),
        ({"hw:mem_page_size": "3GB"}, "flavor.memory_mb: 4096 of a cell is no multiple of its pages"),
        # Devices.
        ({"pci_passthrough:alias": "gpo:1"},
         "there is no alias 'gpo' (the setting pci_aliases); did you mean gpu?"),
        ({"pci_passthrough:alias": "gpu:x"}, "'gpu:x' is no alias with a number, as in a1:2,b:1"),
        ({"pci_passthrough:alias": "gpu:60,gpu:5"}, "5 of 'gpu': from 1 to 64 devices in all"),
        ({"hw:pci_numa_affinity_policy": "near", "pci_passthrough:alias": "gpu"}, "'near' is none of legacy"),
        # Capabilities.
        ({"hw:mem_encryption": "1", "hw:mem_encryption_model": "x"},
         "'x' is none of amd-sev, amd-sev-es, amd"),
        ({"hw:tpm_version": "1.2", "hw:tpm_model": "tpm-crb"},
         "'tpm-crb', and flavor.extra_specs['hw:tpm_version']"),
        ({"hw:pmem": "6 GB"}, "'6 GB' is no name of a namespace"),
        ({"hw:virtio_packed_ring": "x"}, "'x' is neither true nor false"),
    ],
    ids=str,
)  # fmt: skip
def test_extra_specs_that_cannot_be_meant(specs: dict[str, str], sentence: str) -> None:
    assert sentence in refusal(flavor=flavor(specs))


@pytest.mark.parametrize(
    ("request_fields", "sentence"),
    [
        ({"flavor": flavor(PINNED), "image": image(hw_cpu_policy="shared")},
         "['hw:cpu_policy']: 'dedicated', and image.properties['hw_cpu_policy']: 'shared'"),
        ({"flavor": flavor({"hw:mem_encryption": "1"}), "image": image(hw_firmware_type="bios")},
         "['hw:mem_encryption']: it needs UEFI, and image.properties['hw_firmware_type']: 'bios'"),
        ({"image": image(hw_mem_page_size="2MB")},
         "only for a flavor whose hw:mem_page_size is large or any"),
        ({"flavor": flavor({"hw:mem_page_size": "1GB"}), "image": image(hw_mem_page_size="2MB")},
         "large or any; flavor.extra_specs['hw:mem_page_size']: '1GB'"),
        ({"flavor": flavor({"hw:mem_page_size": "large"}), "image": image(hw_mem_page_size="small")},
         "'large', and image.properties['hw_mem_page_size']: 'small'"),
        ({"flavor": flavor({"hw:mem_page_size": "large"}, memory_mb=7)},
         "no multiple of a large page (1GB, 2MB)"),
        ({"flavor": flavor(PINNED, vcpus=0)},
         "flavor.vcpus: 0: a guest with a topology has from 1 to 100000"),
    ],
    ids=str,
)  # fmt: skip
def test_contradictions_name_both_fields(request_fields: dict[str, Any], sentence: str) -> None:
    assert sentence in refusal(**request_fields)


@pytest.mark.parametrize(
    ("specs", "notes"),
    [
        ({"hw:cpu_polcy": "dedicated"},
         ["flavor.extra_specs: hw:cpu_polcy: not known here; did you mean hw:cpu_policy?"]),
        (NUMA | {"os:secure_boot": "optional", "hw:numa_cpus.0": "0-1", "hw:numa_cpus.1": "2-3",
                 "hw:numa_mem.0": "96", "hw:numa_mem.1": "4000"}, []),
    ],
    ids=str,
)  # fmt: skip
def test_extra_specs_that_are_not_read_are_noted(specs: dict[str, str], notes: list[str]) -> None:
    assert list(alternatives(flavor=flavor(specs))[-1].notes) == notes


@pytest.mark.parametrize(
    ("properties", "sentence"),
    [
        ({"hw_disk_bus": "scsy"}, "['hw_disk_bus']: no host can report 'scsy'; did you mean scsi?"),
        ({"disk_format": "tape"}, "image.properties['disk_format']: no host can report 'tape'"),
    ],
)
def test_an_image_demand_that_no_host_can_report_is_refused_only_in_strict_mode(
    properties: dict[str, str], sentence: str
) -> None:
    assert sentence in refusal(options=options(("metadata", "type")), image=image(**properties))
    assert alternatives(image=image(**properties)), "unless an operator wants it so, it is not looked at"


@contextmanager
def less_memory_than(most: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


EVERY = ",".join(["0-99999"] * 100)
LARGEST: list[tuple[dict[str, str], str]] = [
    ({}, ""),
    (PINNED, "flavor.vcpus: 2147483647: a guest with a topology has from 1 to 100000"),
    ({"hw:mem_page_size": "large"}, "flavor.vcpus: 2147483647: a guest with a topology"),
    ({"hw:cpu_dedicated_mask": "0-4294967295"}, "only with hw:cpu_policy=mixed"),
]


@pytest.mark.parametrize(("specs", "sentence"), LARGEST, ids=str)
def test_the_largest_flavor_is_read_in_little_memory(specs: dict[str, str], sentence: str) -> None:
    with less_memory_than(1_000_000):
        if sentence:
            assert sentence in refusal(flavor=flavor(specs, vcpus=MAX_INT))
        else:
            alternatives(flavor=flavor(specs, vcpus=MAX_INT))


def test_a_list_that_names_every_processor_many_times_is_read_in_little_memory() -> None:
    specs = {"hw:numa_nodes": "64"}
    specs |= {f"hw:numa_cpus.{n}": EVERY for n in range(64)} | {f"hw:numa_mem.{n}": "64" for n in range(64)}
    with less_memory_than(5_000_000):
        assert "once" in refusal(flavor=flavor(specs, vcpus=100_000, memory_mb=4096))
