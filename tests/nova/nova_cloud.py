"""A synthetic cloud for comparisons with nova-scheduler: rows of Nova's databases and placement's providers.

Everything is written with Nova's objects, so this module runs in the environment of `make nova-test` only.
"""

from __future__ import annotations

import json
import random
import uuid
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from nova import context as nova_context
from nova import objects
from nova.scheduler.client import report
from oslo_utils import timeutils

CELLS = {"cell1": False, "cell2": False, "cell3": True}  # name → disabled
PROJECTS = ("p1", "p2", "p3", "p4")
DOWN_SECONDS = 3600  # service_down_time: services stay up however long the comparison takes
_MICROVERSION = "1.38"

VIRTUAL = {
    "intel": [["x86_64", "qemu", "hvm"], ["x86_64", "kvm", "hvm"]],
    "libvirt": [["i686", "qemu", "hvm"], ["i686", "kvm", "hvm"],
                ["x86_64", "qemu", "hvm"], ["x86_64", "kvm", "hvm"]],
    "arm": [["aarch64", "kvm", "hvm"], ["armv7l", "qemu", "hvm"]],
    "vmware": [["x86_64", "vmware", "hvm"]],
    "xen": [["x86_64", "xen", "xen"], ["i686", "xen", "xen"], ["x86_64", "xen", "hvm"]],
    "silent": [],
}  # fmt: skip
_HYPERVISORS = {
    "intel": "QEMU", "libvirt": "QEMU", "arm": "QEMU", "vmware": "VMware vCenter Server", "xen": "Xen",
    "silent": "fake",
}  # fmt: skip
# traits that most hosts have, and those that a third has
_COMMON = """
    COMPUTE_IMAGE_TYPE_QCOW2 COMPUTE_IMAGE_TYPE_RAW COMPUTE_STORAGE_BUS_VIRTIO COMPUTE_STORAGE_BUS_SCSI
    COMPUTE_NET_VIF_MODEL_VIRTIO COMPUTE_GRAPHICS_MODEL_VGA COMPUTE_GRAPHICS_MODEL_VIRTIO
    HW_CPU_HYPERTHREADING COMPUTE_SECURITY_UEFI_SECURE_BOOT COMPUTE_ADDRESS_SPACE_EMULATED
""".split()  # noqa: SIM905 - shorter than a list
_RARE = """
    COMPUTE_IMAGE_TYPE_ISO COMPUTE_STORAGE_BUS_IDE COMPUTE_NET_VIF_MODEL_E1000 CUSTOM_SSD CUSTOM_GOLD
    COMPUTE_SECURITY_TPM_TIS COMPUTE_SECURITY_TPM_CRB COMPUTE_SECURITY_TPM_2_0 COMPUTE_SECURITY_TPM_1_2
    COMPUTE_SECURITY_TPM_SECRET_SECURITY_USER COMPUTE_SECURITY_TPM_SECRET_SECURITY_HOST
    COMPUTE_NET_VIRTIO_PACKED COMPUTE_EPHEMERAL_ENCRYPTION COMPUTE_EPHEMERAL_ENCRYPTION_LUKS
    COMPUTE_SOUND_MODEL_VIRTIO COMPUTE_SOUND_MODEL_ICH9 COMPUTE_ADDRESS_SPACE_PASSTHROUGH
    COMPUTE_SECURITY_STATELESS_FIRMWARE COMPUTE_SOCKET_PCI_NUMA_AFFINITY COMPUTE_ACCELERATORS
    COMPUTE_VIOMMU_MODEL_INTEL COMPUTE_VIOMMU_MODEL_VIRTIO
""".split()  # noqa: SIM905 - shorter than a list


@dataclass
class Host:
    """A compute node and its provider."""

    name: str
    node: str
    cell: str
    flavor: str  # of VIRTUAL
    uuid: str
    traits: set[str]
    inventories: dict[str, dict[str, Any]]
    children: list[tuple[str, dict[str, int], set[str]]] = field(default_factory=list)
    instances: list[str] = field(default_factory=list)


@dataclass
class Cloud:
    """What random requests refer to."""

    hosts: list[Host]
    cells: dict[str, objects.CellMapping]
    groups: list[objects.InstanceGroup]
    aggregates: list[objects.Aggregate]
    host_of: dict[str, str]  # instance → name of its host


def an_id(chance: random.Random) -> str:
    return str(uuid.UUID(int=chance.getrandbits(128), version=4))


def make_cloud(chance: random.Random, cell_databases: dict[str, str]) -> Cloud:
    """Write the cloud to Nova's databases and to placement."""
    context = nova_context.get_admin_context()
    cells = {}
    objects.CellMapping(
        context, uuid=objects.CellMapping.CELL0_UUID, name="cell0", transport_url="none:///",
        database_connection=cell_databases["cell0"], disabled=False,
    ).create()  # fmt: skip
    for name, is_disabled in CELLS.items():
        cells[name] = objects.CellMapping(
            context, uuid=an_id(chance), name=name, transport_url="fake:///", disabled=is_disabled,
            database_connection=cell_databases[name],
        )  # fmt: skip
        cells[name].create()
    hosts = [_a_host(chance, number) for number in range(1, 41)]
    hosts += [_a_metal_host(chance, f"ironic-{number // 3}", number) for number in range(6)]
    placement = report.report_client_singleton()
    _make_traits(placement)
    services: set[str] = set()
    for host in hosts:
        with nova_context.target_cell(context, cells[host.cell]) as cell_context:
            if host.name not in services:
                objects.HostMapping(context, host=host.name, cell_mapping=cells[host.cell]).create()
                _make_service(chance, cell_context, host)
                services.add(host.name)
            _make_provider(placement, host)
            _make_instances(chance, cell_context, placement, host)
            _make_node(chance, cell_context, host)
    host_of = {instance: host.name for host in hosts for instance in host.instances}
    aggregates = [_an_aggregate(chance, context, metadata, hosts) for metadata in _METADATA]
    groups = [_a_group(chance, context, policy, sorted(host_of)) for policy in _POLICIES]
    return Cloud(hosts, cells, groups, aggregates, host_of)


def _a_host(chance: random.Random, number: int) -> Host:
    kind = chance.choice(("intel", "libvirt", "libvirt", "arm", "vmware", "xen", "silent"))
    traits = {trait for trait in _COMMON if chance.random() < 0.85}
    traits |= {trait for trait in _RARE if chance.random() < 0.35}
    traits.add({"arm": "HW_ARCH_AARCH64"}.get(kind, "HW_ARCH_X86_64"))
    if number != 7:  # a provider that Nova does not own
        traits.add("OWNER_NOVA")
    inventories = {
        "VCPU": {"total": chance.choice((4, 8, 16)), "allocation_ratio": chance.choice((1.0, 4.0))},
        "MEMORY_MB": {"total": chance.choice((4096, 16384, 32768))},
        "DISK_GB": {"total": chance.choice((20, 100, 500))},
    }
    if chance.random() < 0.2:
        inventories["VCPU"]["max_unit"] = 2
    host = Host(
        name=f"compute-{number:02}" if number % 10 else f"Compute-{number:02}", node=f"node-{number:02}",
        cell="cell3" if number > 37 else chance.choice(("cell1", "cell2")), flavor=kind, uuid=an_id(chance),
        traits=traits, inventories=inventories,
    )  # fmt: skip
    if chance.random() < 0.4:
        physnet = chance.choice(("CUSTOM_PHYSNET_A", "CUSTOM_PHYSNET_B"))
        host.children.append(("nic", {"NET_BW_EGR_KILOBIT_PER_SEC": 10000}, {physnet}))
    if chance.random() < 0.4:
        host.children += [
            (f"fpga{n}", {"CUSTOM_FPGA": 1}, {chance.choice(("CUSTOM_GOLD", "CUSTOM_SSD"))}) for n in range(2)
        ]
    return host


def _a_metal_host(chance: random.Random, name: str, number: int) -> Host:
    return Host(
        name=name, node=f"metal-{number}", cell="cell1", flavor="intel", uuid=an_id(chance),
        traits={"OWNER_NOVA", "CUSTOM_GOLD", "COMPUTE_IMAGE_TYPE_RAW", "COMPUTE_IMAGE_TYPE_QCOW2"},
        inventories={"CUSTOM_BAREMETAL": {"total": 1, "reserved": int(number == 2)}},
    )  # fmt: skip


def _make_traits(placement: Any) -> None:
    for trait in {*_COMMON, *_RARE, "CUSTOM_PHYSNET_A", "CUSTOM_PHYSNET_B"}:
        if trait.startswith("CUSTOM_"):
            _put(placement, f"/traits/{trait}")
    for resource_class in ("CUSTOM_FPGA", "CUSTOM_BAREMETAL"):
        _put(placement, f"/resource_classes/{resource_class}")


def _put(placement: Any, path: str, body: Any = None, method: str = "put") -> Any:
    send = placement._client.put if method == "put" else placement._client.post
    answer = send(path, json=body, microversion=_MICROVERSION)
    assert answer.status_code < 300, (path, answer.text)
    return answer.json() if answer.content else None


def _make_provider(placement: Any, host: Host) -> None:
    providers = [(host.node, host.uuid, None, host.inventories, host.traits)]
    for name, totals, traits in host.children:
        child = str(uuid.uuid5(uuid.UUID(host.uuid), name))
        inventories = {resource_class: {"total": total} for resource_class, total in totals.items()}
        providers.append((f"{host.node}-{name}", child, host.uuid, inventories, traits))
    for name, id_, parent, inventories, traits in providers:
        body = {"name": name, "uuid": id_, "parent_provider_uuid": parent}
        _put(placement, "/resource_providers", body, "post")
        answer = _put(
            placement, f"/resource_providers/{id_}/inventories",
            {"resource_provider_generation": 0, "inventories": inventories},
        )  # fmt: skip
        generation = answer["resource_provider_generation"]
        body = {"resource_provider_generation": generation, "traits": sorted(traits)}
        _put(placement, f"/resource_providers/{id_}/traits", body)


def _make_service(chance: random.Random, context: Any, host: Host) -> None:
    number = chance.random()
    seen = timeutils.utcnow() - timedelta(seconds=2 * DOWN_SECONDS if 0.08 < number < 0.14 else 1)
    service = objects.Service(
        context, host=host.name, binary="nova-compute", topic="compute", report_count=1, last_seen_up=seen,
        disabled=number < 0.08, forced_down=0.14 <= number < 0.18,
    )  # fmt: skip
    if service.disabled:
        service.disabled_reason = "maintenance"
        if chance.random() < 0.7:  # nova-compute sets it soon after
            host.traits.add("COMPUTE_STATUS_DISABLED")
    service.create()


def _make_instances(chance: random.Random, context: Any, placement: Any, host: Host) -> None:
    """Make instances that hold resources of a host; some hold them as a migration does."""
    if "VCPU" not in host.inventories:
        return
    for _ in range(chance.choice((0, 1, 1, 2, 3))):
        instance = an_id(chance)
        objects.Instance(
            context, uuid=instance, host=host.name, project_id="p1", user_id="u1",
            vm_state="active",
        ).create()  # fmt: skip
        resources = {"VCPU": 1, "MEMORY_MB": 512, "DISK_GB": 2}
        body = {
            "allocations": {host.uuid: {"resources": resources}}, "project_id": "p1", "user_id": "u1",
            "consumer_generation": None, "consumer_type": "INSTANCE",
        }  # fmt: skip
        _put(placement, f"/allocations/{instance}", body)
        host.instances.append(instance)


def _make_node(chance: random.Random, context: Any, host: Host) -> None:
    used, total = len(host.instances), {name: row["total"] for name, row in host.inventories.items()}
    vcpus, memory, disk = total.get("VCPU", 0), total.get("MEMORY_MB", 0), total.get("DISK_GB", 0)
    features = ["avx", *(["avx2"] if chance.random() < 0.5 else []), "sse4.2"]
    cpu_info = {
        "arch": "aarch64" if host.flavor == "arm" else "x86_64", "model": chance.choice(("Skylake", "EPYC")),
        "vendor": "Intel", "features": features,
        "topology": {"cores": chance.choice((2, 4, 8)), "sockets": 1, "threads": 2},
        **({"maxphysaddr": {"mode": "emulate", "bits": chance.choice((42, 46))}}
           if chance.random() < 0.5 else {}),
    }  # fmt: skip
    stats = {
        "num_instances": str(used + chance.choice((0, 0, 40, 60))), "failed_builds": "0",
        "io_workload": str(chance.choice((0, 0, 1, 3, 9))),
        **({"trusted": chance.choice(("yes", "no"))} if chance.random() < 0.6 else {}),
    }  # fmt: skip
    metrics = [
        {"name": name, "value": chance.randint(0, 100), "timestamp": "2026-11-24T10:00:00Z", "source": "nova",
         "numa_membw_values": None}
        for name in ("cpu.frequency", "cpu.user.percent") if chance.random() < 0.85
    ]  # fmt: skip
    objects.ComputeNode(
        context, uuid=host.uuid, host=host.name, hypervisor_hostname=host.node, vcpus=vcpus, memory_mb=memory,
        local_gb=disk, vcpus_used=used, memory_mb_used=512 * used, local_gb_used=2 * used,
        free_ram_mb=memory - 512 * used, free_disk_gb=disk - 2 * used, current_workload=0, running_vms=used,
        hypervisor_type=_HYPERVISORS[host.flavor], hypervisor_version=chance.choice((8002000, 6000000, 0)),
        cpu_info=json.dumps(cpu_info), disk_available_least=None, metrics=json.dumps(metrics), stats=stats,
        host_ip=f"10.0.{chance.randint(0, 3)}.{chance.randint(1, 250)}", numa_topology=None,
        supported_hv_specs=[objects.HVSpec.from_list(each) for each in VIRTUAL[host.flavor]],
        pci_device_pools=None, cpu_allocation_ratio=1.0, ram_allocation_ratio=1.0, disk_allocation_ratio=1.0,
        mapped=1,
    ).create()  # fmt: skip


_METADATA: tuple[dict[str, str], ...] = (
    {"availability_zone": "az1"},
    {"availability_zone": "az2"},
    {"availability_zone": "az1"},
    {"filter_tenant_id": "p1"},
    {"filter_tenant_id_b": "p2"},
    {"trait:CUSTOM_SSD": "required"},
    {"instance_type": "m1.small, m1.large"},
    {"max_io_ops_per_host": "2"},
    {"max_instances_per_host": "30"},
    {"ssd": "true", "tier": "1,2"},
    {"os_distro": "debian,ubuntu", "hw_disk_bus": "virtio"},
    {"img_hv_type": "qemu"},
    {"note": "nothing"},
)
_POLICIES = ("affinity", "anti-affinity", "anti-affinity", "soft-affinity", "soft-anti-affinity", "affinity")


def _an_aggregate(
    chance: random.Random, context: Any, metadata: dict[str, str], hosts: list[Host]
) -> objects.Aggregate:
    """Make an aggregate of some hosts; no host is in two zones."""
    share = 0.6 if "availability_zone" not in metadata else 1.0
    aggregate = objects.Aggregate(
        context, uuid=an_id(chance), name=f"aggregate-{chance.getrandbits(32):x}", metadata=dict(metadata)
    )
    aggregate.create()
    zone = metadata.get("availability_zone")
    names = list(dict.fromkeys(host.name for host in hosts))
    for position, name in enumerate(names):
        is_in = position % 3 == int(zone[-1]) if zone else chance.random() < 0.25
        if is_in and chance.random() < share:
            aggregate.add_host(name)
    return aggregate


def _a_group(chance: random.Random, context: Any, policy: str, instances: list[str]) -> objects.InstanceGroup:
    rules = {"max_server_per_host": 2} if policy == "anti-affinity" and chance.random() < 0.5 else {}
    group = objects.InstanceGroup(
        context, uuid=an_id(chance), name=f"group-{policy}", user_id="u1", project_id="p1", policy=policy,
        rules=rules, members=[*chance.sample(instances, chance.choice((0, 2, 6))), an_id(chance)],
    )  # fmt: skip
    group.create()
    return group
