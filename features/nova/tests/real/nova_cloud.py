"""A synthetic cloud for comparisons with nova-scheduler: rows of Nova's databases and placement's providers.

Everything is written with Nova's objects, so this module runs in the environment of `make nova-test` only.
"""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from nova import context as nova_context
from nova import objects
from nova.scheduler.client import report
from oslo_utils import timeutils

from features.nova.tests.real.nova_hosts import (
    COMMON_TRAITS,
    HYPERVISORS,
    RARE_TRAITS,
    VIRTUAL,
    SyntheticHost,
    an_id,
    random_hosts,
)

CELLS = {"cell1": False, "cell2": False, "cell3": True}  # name → disabled
PROJECTS = ("p1", "p2", "p3", "p4")
DOWN_SECONDS = 3600  # service_down_time: services stay up however long the comparison takes
_MICROVERSION = "1.38"


@dataclass
class Cloud:
    """Cells, hosts, groups and instances to which random requests refer."""

    hosts: list[SyntheticHost]
    cells: dict[str, objects.CellMapping]
    groups: list[objects.InstanceGroup]
    aggregates: list[objects.Aggregate]
    host_of: dict[str, str]  # instance → name of its host
    migrating: set[str]  # instances whose resources are held by a migration


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
    hosts = random_hosts(chance)
    placement = report.report_client_singleton()
    _make_traits(placement)
    services: set[str] = set()
    for host in hosts:
        with nova_context.target_cell(context, cells[host.cell]) as cell_context:
            if host.name not in services:
                objects.HostMapping(context, host=host.name, cell_mapping=cells[host.cell]).create()
                _make_service(chance, cell_context, host)
                services.add(host.name)
            _make_providers(placement, host)
            _make_instances(chance, cell_context, placement, host)
            _make_node(chance, cell_context, host)
    host_of = {instance: host.name for host in hosts for instance in host.instances}
    aggregates = [_an_aggregate(chance, context, metadata, hosts) for metadata in _METADATA]
    migrating = {instance for host in hosts for instance in host.migrating}
    staying = sorted(host_of.keys() - migrating)
    groups = [
        _a_group(context, an_id(chance), policy, chance.sample(staying, chance.choice((0, 2, 6))))
        for policy in _POLICIES
    ]
    groups += [
        _a_group(context, an_id(chance), policy, members)
        for policy, members in _groups_of_moving(chance, hosts, staying)
    ]
    _share_disks(placement, chance, hosts)
    return Cloud(hosts, cells, groups, aggregates, host_of, migrating)


def _groups_of_moving(
    chance: random.Random, hosts: list[SyntheticHost], staying: list[str]
) -> Iterator[tuple[str, list[str]]]:
    """Yield groups of a migrating instance: with another of its host, and with others anywhere."""
    for host in hosts:
        for moving in sorted(host.migrating):
            if beside := [instance for instance in host.instances if instance not in host.migrating]:
                yield "affinity", [moving, *beside]
            elif chance.random() < 0.7:
                yield "anti-affinity", [moving, *chance.sample(staying, 5)]


def _share_disks(placement: Any, chance: random.Random, hosts: list[SyntheticHost]) -> None:
    """Make a provider whose disks hosts without disks share."""
    storage, aggregate = an_id(chance), an_id(chance)
    _make_provider(placement, storage, "storage", {"DISK_GB": {"total": 200}}, {"MISC_SHARES_VIA_AGGREGATE"})
    sharing = [host.uuid for host in hosts if host.cell != "cell3" and host.has_shared_disk]
    for id_ in [storage, *sharing]:
        known = placement._client.get(f"/resource_providers/{id_}", microversion=_MICROVERSION).json()
        body = {"aggregates": [aggregate], "resource_provider_generation": known["generation"]}
        _put(placement, f"/resource_providers/{id_}/aggregates", body)


def _make_traits(placement: Any) -> None:
    for trait in {*COMMON_TRAITS, *RARE_TRAITS, "CUSTOM_PHYSNET_A", "CUSTOM_PHYSNET_B"}:
        if trait.startswith("CUSTOM_"):
            _put(placement, f"/traits/{trait}")
    for resource_class in ("CUSTOM_FPGA", "CUSTOM_BAREMETAL"):
        _put(placement, f"/resource_classes/{resource_class}")


def _put(placement: Any, path: str, body: Any = None, method: str = "put") -> Any:
    send = placement._client.put if method == "put" else placement._client.post
    answer = send(path, json=body, microversion=_MICROVERSION)
    assert answer.status_code < 300, (path, answer.text)
    return answer.json() if answer.content else None


def _make_providers(placement: Any, host: SyntheticHost) -> None:
    _make_provider(placement, host.uuid, host.node, host.inventories, host.traits)
    for name, totals, traits in host.children:
        child = str(uuid.uuid5(uuid.UUID(host.uuid), name))
        inventories = {resource_class: {"total": total} for resource_class, total in totals.items()}
        _make_provider(placement, child, f"{host.node}-{name}", inventories, traits, parent=host.uuid)


def _make_provider(
    placement: Any,
    id_: str,
    name: str,
    inventories: dict[str, dict[str, Any]],
    traits: set[str],
    *,
    parent: str | None = None,
) -> None:
    _put(
        placement, "/resource_providers", {"name": name, "uuid": id_, "parent_provider_uuid": parent}, "post"
    )
    body = {"resource_provider_generation": 0, "inventories": inventories}
    answer = _put(placement, f"/resource_providers/{id_}/inventories", body)
    body = {"resource_provider_generation": answer["resource_provider_generation"], "traits": sorted(traits)}
    _put(placement, f"/resource_providers/{id_}/traits", body)


def _make_service(chance: random.Random, context: Any, host: SyntheticHost) -> None:
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


def _make_instances(chance: random.Random, context: Any, placement: Any, host: SyntheticHost) -> None:
    """Make instances that hold resources of a host; some hold them as a migration does."""
    if "VCPU" not in host.inventories:
        return
    for _ in range(chance.choice((0, 1, 1, 2, 3))):
        instance = an_id(chance)
        objects.Instance(
            context, uuid=instance, host=host.name, project_id="p1", user_id="u1",
            vm_state="active",
        ).create()  # fmt: skip
        amounts = {"VCPU": 1, "MEMORY_MB": 512, "DISK_GB": 2}
        resources = {name: amount for name, amount in amounts.items() if name in host.inventories}
        is_migrating = chance.random() < 0.2
        body = {
            "allocations": {host.uuid: {"resources": resources}}, "project_id": "p1", "user_id": "u1",
            "consumer_generation": None, "consumer_type": "MIGRATION" if is_migrating else "INSTANCE",
        }  # fmt: skip
        _put(placement, f"/allocations/{an_id(chance) if is_migrating else instance}", body)
        host.instances.append(instance)
        if is_migrating:
            host.migrating.add(instance)


def _make_node(chance: random.Random, context: Any, host: SyntheticHost) -> None:
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
        local_gb=disk, vcpus_used=used, memory_mb_used=512 * used, local_gb_used=2 * used if disk else 0,
        free_ram_mb=memory - 512 * used, free_disk_gb=disk - 2 * used if disk else 0, current_workload=0,
        running_vms=used,
        hypervisor_type=HYPERVISORS[host.flavor], hypervisor_version=chance.choice((8002000, 6000000, 0)),
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
    chance: random.Random, context: Any, metadata: dict[str, str], hosts: list[SyntheticHost]
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


def _a_group(context: Any, id_: str, policy: str, members: list[str]) -> objects.InstanceGroup:
    """Make a group with these members and one that was never built; half of the groups have a limit of 2."""
    rules = {"max_server_per_host": 2} if policy == "anti-affinity" and id_ < "8" else {}
    unbuilt = str(uuid.uuid5(uuid.UUID(id_), "unbuilt"))
    group = objects.InstanceGroup(
        context, uuid=id_, name=f"group-{policy}", user_id="u1", project_id="p1", policy=policy, rules=rules,
        members=[*members, unbuilt],
    )  # fmt: skip
    group.create()
    return group
