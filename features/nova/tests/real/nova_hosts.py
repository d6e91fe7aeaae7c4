"""Random compute nodes for comparisons with nova-scheduler, with the providers that placement has of them."""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass, field
from typing import Any

VIRTUAL = {
    "intel": [["x86_64", "qemu", "hvm"], ["x86_64", "kvm", "hvm"]],
    "libvirt": [["i686", "qemu", "hvm"], ["i686", "kvm", "hvm"],
                ["x86_64", "qemu", "hvm"], ["x86_64", "kvm", "hvm"]],
    "arm": [["aarch64", "kvm", "hvm"], ["armv7l", "qemu", "hvm"]],
    "vmware": [["x86_64", "vmware", "hvm"]],
    "xen": [["x86_64", "xen", "xen"], ["i686", "xen", "xen"], ["x86_64", "xen", "hvm"]],
    "silent": [],
}  # fmt: skip
HYPERVISORS = {
    "intel": "QEMU", "libvirt": "QEMU", "arm": "QEMU", "vmware": "VMware vCenter Server", "xen": "Xen",
    "silent": "fake",
}  # fmt: skip
# traits that most hosts have, and those that a third has
COMMON_TRAITS = """
    COMPUTE_IMAGE_TYPE_QCOW2 COMPUTE_IMAGE_TYPE_RAW COMPUTE_STORAGE_BUS_VIRTIO COMPUTE_STORAGE_BUS_SCSI
    COMPUTE_NET_VIF_MODEL_VIRTIO COMPUTE_GRAPHICS_MODEL_VGA COMPUTE_GRAPHICS_MODEL_VIRTIO
    HW_CPU_HYPERTHREADING COMPUTE_SECURITY_UEFI_SECURE_BOOT COMPUTE_ADDRESS_SPACE_EMULATED
""".split()  # noqa: SIM905 - shorter than a list
RARE_TRAITS = """
    COMPUTE_IMAGE_TYPE_ISO COMPUTE_STORAGE_BUS_IDE COMPUTE_NET_VIF_MODEL_E1000 CUSTOM_SSD CUSTOM_GOLD
    COMPUTE_SECURITY_TPM_TIS COMPUTE_SECURITY_TPM_CRB COMPUTE_SECURITY_TPM_2_0 COMPUTE_SECURITY_TPM_1_2
    COMPUTE_SECURITY_TPM_SECRET_SECURITY_USER COMPUTE_SECURITY_TPM_SECRET_SECURITY_HOST
    COMPUTE_NET_VIRTIO_PACKED COMPUTE_EPHEMERAL_ENCRYPTION COMPUTE_EPHEMERAL_ENCRYPTION_LUKS
    COMPUTE_SOUND_MODEL_VIRTIO COMPUTE_SOUND_MODEL_ICH9 COMPUTE_ADDRESS_SPACE_PASSTHROUGH
    COMPUTE_SECURITY_STATELESS_FIRMWARE COMPUTE_SOCKET_PCI_NUMA_AFFINITY COMPUTE_ACCELERATORS
    COMPUTE_VIOMMU_MODEL_INTEL COMPUTE_VIOMMU_MODEL_VIRTIO
""".split()  # noqa: SIM905 - shorter than a list


@dataclass
class SyntheticHost:
    """A compute node and its provider."""

    name: str
    node: str
    cell: str
    flavor: str  # of VIRTUAL
    uuid: str
    traits: set[str]
    inventories: dict[str, dict[str, Any]]
    has_shared_disk: bool = False
    children: list[tuple[str, dict[str, int], set[str]]] = field(default_factory=list)
    instances: list[str] = field(default_factory=list)
    migrating: set[str] = field(default_factory=set)


def an_id(chance: random.Random) -> str:
    return str(uuid.UUID(int=chance.getrandbits(128), version=4))


def random_hosts(chance: random.Random) -> list[SyntheticHost]:
    """Return 40 hosts with one node each, and two hosts with three bare-metal nodes each."""
    hosts = [_a_host(chance, number) for number in range(1, 41)]
    return [*hosts, *(_a_metal_host(chance, f"ironic-{number // 3}", number) for number in range(6))]


def _a_host(chance: random.Random, number: int) -> SyntheticHost:
    kind = chance.choice(("intel", "libvirt", "libvirt", "arm", "vmware", "xen", "silent"))
    traits = {trait for trait in COMMON_TRAITS if chance.random() < 0.85}
    traits |= {trait for trait in RARE_TRAITS if chance.random() < 0.35}
    traits.add({"arm": "HW_ARCH_AARCH64"}.get(kind, "HW_ARCH_X86_64"))
    if number != 7:  # a provider that Nova does not own
        traits.add("OWNER_NOVA")
    inventories: dict[str, dict[str, Any]] = {
        "VCPU": {"total": chance.choice((4, 8, 16)), "allocation_ratio": chance.choice((1.0, 4.0))},
        "MEMORY_MB": {"total": chance.choice((4096, 16384, 32768))},
        "DISK_GB": {"total": chance.choice((20, 100, 500))},
    }
    if chance.random() < 0.2:
        inventories["VCPU"]["max_unit"] = 2
    if has_shared_disk := chance.random() < 0.2:
        del inventories["DISK_GB"]
    host = SyntheticHost(
        name=f"compute-{number:02}" if number % 10 else f"Compute-{number:02}", node=f"node-{number:02}",
        cell="cell3" if number > 37 else chance.choice(("cell1", "cell2")), flavor=kind, uuid=an_id(chance),
        traits=traits, inventories=inventories, has_shared_disk=has_shared_disk,
    )  # fmt: skip
    if chance.random() < 0.4:
        physnet = chance.choice(("CUSTOM_PHYSNET_A", "CUSTOM_PHYSNET_B"))
        host.children.append(("nic", {"NET_BW_EGR_KILOBIT_PER_SEC": 10000}, {physnet}))
    if chance.random() < 0.4:
        host.children += [
            (f"fpga{n}", {"CUSTOM_FPGA": 1}, {chance.choice(("CUSTOM_GOLD", "CUSTOM_SSD"))}) for n in range(2)
        ]
    host.children += [
        (
            f"memory-{model.lower()}",
            {"MEM_ENCRYPTION_CONTEXT": chance.choice((1, 15))},
            {f"HW_CPU_X86_{model}"},
        )
        for model in ("AMD_SEV", "AMD_SEV_ES", "INTEL_TDX")
        if chance.random() < 0.4
    ]
    return host


def _a_metal_host(chance: random.Random, name: str, number: int) -> SyntheticHost:
    return SyntheticHost(
        name=name, node=f"metal-{number}", cell="cell1", flavor="intel", uuid=an_id(chance),
        traits={"OWNER_NOVA", "CUSTOM_GOLD", "COMPUTE_IMAGE_TYPE_RAW", "COMPUTE_IMAGE_TYPE_QCOW2"},
        inventories={"CUSTOM_BAREMETAL": {"total": 1, "reserved": int(number == 2)}},
    )  # fmt: skip
