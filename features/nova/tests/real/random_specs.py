"""Random RequestSpecs for the synthetic cloud of nova_cloud.py, made with Nova's objects."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from nova import context as nova_context
from nova import objects

from features.nova.tests.real.nova_cloud import PROJECTS, Cloud
from features.nova.tests.real.nova_hosts import SyntheticHost, an_id

Fields = dict[str, Any]

_EXTRA_SPECS: dict[str, tuple[str, ...]] = {
    "resources:VCPU": ("1", "2"),
    "resources:MEMORY_MB": ("256",),
    "resources:DISK_GB": ("0", "1"),
    "resources:CUSTOM_FPGA": ("1",),
    "resources1:CUSTOM_FPGA": ("1",),
    "resources_A:CUSTOM_FPGA": ("1",),
    "trait1:CUSTOM_GOLD": ("required", "forbidden"),
    "trait:CUSTOM_SSD": ("required", "forbidden"),
    "trait:CUSTOM_GOLD": ("required", "forbidden"),
    "trait:COMPUTE_SECURITY_UEFI_SECURE_BOOT": ("required", "forbidden"),
    "capabilities:cpu_info:arch": ("x86_64", "s== x86_64", "<or> aarch64 <or> x86_64", "<in> 64"),
    "capabilities:cpu_info:topology:cores": (">= 4", "== 2", "= 4", "8"),
    "capabilities:cpu_info:features": ("<in> avx2", "<all-in> avx sse4.2", "<in> avx512"),
    "capabilities:cpu_info:maxphysaddr:bits": (">= 46",),
    "capabilities:cpu_info:model": ("EPYC", "s!= EPYC", "<or> Skylake <or> EPYC"),
    "capabilities:hypervisor_type": ("QEMU", "s== QEMU", "s!= QEMU", "<or> Xen <or> QEMU"),
    "capabilities:hypervisor_version": (">= 7000000", "8002000"),
    "capabilities:hypervisor_hostname": ("<in> node-1",),
    "capabilities:nodename": ("<in> node-2",),
    "capabilities:host": ("s>= compute-2",),
    "capabilities:host_ip": ("<in> 10.0.1",),
    "capabilities:trusted": ("yes", "s!= no"),
    "capabilities:stats:trusted": ("yes",),
    "capabilities:num_instances": ("<= 5",),
    "capabilities:num_io_ops": ("== 0",),
    "capabilities:free_ram_mb": (">= 8000",),
    "capabilities:free_disk_mb": (">= 50000",),
    "capabilities:total_usable_ram_mb": (">= 16384",),
    "capabilities:failed_builds": ("== 0",),
    "capabilities:missing": ("1",),
    "trusted": ("yes",),
    "num_instances": ("<= 5",),
    "free_ram_mb": (">= 8000",),
    "hypervisor_type": ("QEMU",),
    "hide_hypervisor_id": ("true",),
    "ssd": ("true",),
    "tier": ("<or> 2 <or> 3", ">= 2", "2"),
    "aggregate_instance_extra_specs:ssd": ("true", "s!= false", "false"),
    "aggregate_instance_extra_specs:tier": ("1", "== 2"),
    "hw:tpm_version": ("2.0", "1.2"),
    "hw:tpm_model": ("tpm-tis", "tpm-crb"),
    "hw:tpm_secret_security": ("user", "host"),
    "hw:mem_encryption": ("true", "T", "no"),
    "hw:mem_encryption_model": ("amd-sev", "amd-sev-es", "intel-tdx"),
    "resources:VGPU": ("much", "-1"),  # Nova ignores the next ones with a warning
    "resources:disk": ("1",),
    "trait:CUSTOM_LEAD": ("forbade",),
    "os:secure_boot": ("required", "optional", "disabled"),
    "hw:maxphysaddr_mode": ("passthrough", "emulate"),
    "hw:maxphysaddr_bits": ("46",),
    "hw:virtio_packed_ring": ("true", "false"),
    "hw:ephemeral_encryption": ("true", "false"),
    "hw:ephemeral_encryption_format": ("luks",),
    "hw:sound_model": ("virtio", "ich9"),
    "hw:viommu_model": ("intel", "virtio", "auto"),
    "hw:pci_numa_affinity_policy": ("socket", "preferred"),
    "hw:boot_menu": ("true",),
    "hw_rng:allowed": ("True",),
    "quota:cpu_quota": ("10000",),
    "accel:device_profile": ("fpga",),
    "unknown:key": ("1",),
}
_PROPERTIES: dict[str, tuple[Any, ...]] = {
    "hw_architecture": ("x86_64", "i686", "aarch64", "amd64"),
    "img_hv_type": ("qemu", "kvm", "vmware", "xen"),
    "hw_vm_mode": ("hvm", "xen"),
    "img_hv_requested_version": (">=7.0", ">=6.0,<8.0", "==8.2"),
    "hw_disk_bus": ("virtio", "scsi", "ide"),
    "hw_cdrom_bus": ("ide", "scsi"),
    "hw_video_model": ("vga", "virtio"),
    "hw_vif_model": ("virtio", "e1000"),
    "hw_emulation_architecture": ("aarch64",),
    "hw_viommu_model": ("intel", "virtio"),
    "hw_tpm_version": ("2.0",),
    "hw_tpm_model": ("tpm-crb", "tpm-tis"),
    "hw_firmware_type": ("uefi", "bios"),
    "hw_firmware_stateless": (True, False),
    "hw_machine_type": ("q35",),
    "hw_virtio_packed_ring": (True, False),
    "hw_ephemeral_encryption": (True, False),
    "hw_sound_model": ("virtio", "ich9"),
    "hw_cpu_cores": (2,),
    "hw_boot_menu": (True,),
    "hw_pci_numa_affinity_policy": ("socket",),
    "hw_maxphysaddr_mode": ("emulate",),
    "os_secure_boot": ("required", "optional"),
    "os_distro": ("debian", "fedora"),
    "os_require_quiesce": (True,),
    "img_hide_hypervisor_id": (True,),
    "traits_required": (["CUSTOM_SSD"], ["CUSTOM_GOLD", "CUSTOM_SSD"]),
}
_QUERIES: tuple[Any, ...] = (
    [">=", "$free_ram_mb", 8000],
    ["and", [">=", "$free_disk_mb", 40000], ["<", "$num_instances", 20]],
    ["or", ["=", "$hypervisor_type", "QEMU"], ["in", "$host", "compute-01", "compute-02"]],
    ["not", ["=", "$num_io_ops", 0]],
    ["=", "$stats.trusted", "yes"],
    ["<=", "$vcpus_used", 1],
    ["=", "$hypervisor_hostname", "node-05"],
    ["=", "$missing", 1],
    [">", "$total_usable_ram_mb", 4096],
)


class SpecMaker:
    """Makes RequestSpecs, most of them with two or three demands on the host."""

    def __init__(self, chance: random.Random, cloud: Cloud) -> None:
        self._chance = chance
        self._cloud = cloud
        self._context = nova_context.get_admin_context()
        self._demands: tuple[Callable[[Fields], None], ...] = (
            self._zone, self._group, self._same_host, self._different_host, self._address, self._query,
            self._ignored, self._forced, self._destination, self._port, self._large, self._metal,
            self._level, self._rebuild, self._move,
        )  # fmt: skip

    def make(self) -> objects.RequestSpec:
        chance, flavor = self._chance, self._flavor()
        fields: Fields = {
            "flavor": flavor, "image": self._image(flavor), "project_id": chance.choice(PROJECTS),
            "user_id": "u1", "num_instances": 1, "instance_uuid": an_id(chance), "availability_zone": None,
            "ignore_hosts": None, "force_hosts": None, "force_nodes": None, "instance_group": None,
            "scheduler_hints": {}, "is_bfv": chance.random() < 0.15, "numa_topology": None, "retry": None,
            "limits": objects.SchedulerLimits(), "requested_destination": None, "requested_resources": [],
            "pci_requests": objects.InstancePCIRequests(requests=[]),
            "request_level_params": objects.RequestLevelParams(),
            "requested_networks": objects.NetworkRequestList(objects=[]),
            "network_metadata": objects.NetworkMetadata(physnets=set(), tunneled=False),
            "security_groups": objects.SecurityGroupList(objects=[]),
        }  # fmt: skip
        for demand in chance.sample(self._demands, chance.choice((0, 1, 1, 2))):
            demand(fields)
        return objects.RequestSpec(self._context, **fields)

    def _flavor(self) -> objects.Flavor:
        chance = self._chance
        extra = {
            key: chance.choice(_EXTRA_SPECS[key])
            for key in chance.sample(list(_EXTRA_SPECS), chance.choice((0, 0, 1, 1, 2, 3)))
        }
        is_alone = chance.random() < 0.3  # without the extra spec to which it belongs
        if not is_alone and ("hw:tpm_model" in extra or "hw:tpm_secret_security" in extra):
            extra["hw:tpm_version"] = "2.0"
        if not is_alone and "hw:ephemeral_encryption_format" in extra:
            extra["hw:ephemeral_encryption"] = "true"
        if not is_alone and "hw:mem_encryption_model" in extra:
            extra["hw:mem_encryption"] = "true"
        if extra.get("hw:tpm_model") == "tpm-crb" and extra.get("hw:tpm_version") == "1.2":
            extra["hw:tpm_version"] = "2.0"  # the API refuses 1.2
        if "trait1:CUSTOM_GOLD" in extra or "resources_A:CUSTOM_FPGA" in extra:
            extra["resources1:CUSTOM_FPGA"] = "1"
            extra["group_policy"] = chance.choice(("none", "isolate"))  # required for several groups
        return objects.Flavor(
            self._context, id=1, name=chance.choice(("m1.small", "m1.large", "c1", "r1")), flavorid="f1",
            vcpus=chance.choice((1, 1, 2, 4)), memory_mb=chance.choice((256, 512, 2048, 8192)),
            root_gb=chance.choice((0, 1, 10, 40)), ephemeral_gb=chance.choice((0, 0, 5)), is_public=True,
            swap=chance.choice((0, 0, 1025)), rxtx_factor=1.0, vcpu_weight=0, disabled=False,
            extra_specs=extra, projects=[], description=None,
        )  # fmt: skip

    def _image(self, flavor: objects.Flavor) -> objects.ImageMeta:
        chance = self._chance
        known = {
            key: chance.choice(_PROPERTIES[key])
            for key in chance.sample(list(_PROPERTIES), chance.choice((0, 0, 1, 1, 2, 3)))
        }
        if "hw_tpm_model" in known:
            known["hw_tpm_version"] = "2.0"
        if "hw:mem_encryption" in flavor.extra_specs:  # the API refuses other images
            known |= {"hw_firmware_type": "uefi", "hw_machine_type": "q35", "hw_firmware_stateless": True}
        if flavor.extra_specs.get("hw:mem_encryption_model") == "intel-tdx":
            known["hw_video_model"] = "none"
        return objects.ImageMeta(
            id=an_id(chance), name=chance.choice(("debian", "windows")), status="active", min_disk=0,
            disk_format=chance.choice(("qcow2", "qcow2", "raw", "iso")), container_format="bare", min_ram=0,
            size=1, properties=objects.ImageMetaProps(**known),
        )  # fmt: skip

    def _host(self) -> SyntheticHost:
        return self._chance.choice(self._cloud.hosts)

    def _some_instances(self) -> list[str]:
        instances = sorted(self._cloud.host_of)
        some = self._chance.sample(instances, self._chance.choice((1, 2, 4)))
        return [*some, an_id(self._chance)] if self._chance.random() < 0.2 else some

    def _zone(self, fields: Fields) -> None:
        fields["availability_zone"] = self._chance.choice(("az1", "az1", "az2", "nova", "unknown"))

    def _group(self, fields: Fields) -> None:
        groups = [group for group in self._cloud.groups if self._cloud.migrating.isdisjoint(group.members)]
        self._take_group(fields, self._chance.choice(groups))

    def _take_group(self, fields: Fields, known: objects.InstanceGroup) -> None:
        group = known.obj_clone()
        group.hosts = sorted({
            self._cloud.host_of[member] for member in group.members if member in self._cloud.host_of
        })  # fmt: skip
        group.obj_reset_changes(["hosts"])
        fields["project_id"] = group.project_id
        fields["instance_group"] = group
        fields["scheduler_hints"]["group"] = [group.uuid]

    def _same_host(self, fields: Fields) -> None:
        fields["scheduler_hints"]["same_host"] = self._some_instances()

    def _different_host(self, fields: Fields) -> None:
        fields["scheduler_hints"]["different_host"] = self._some_instances()

    def _address(self, fields: Fields) -> None:
        fields["scheduler_hints"]["build_near_host_ip"] = [f"10.0.{self._chance.randint(0, 3)}.7"]
        if self._chance.random() < 0.5:
            fields["scheduler_hints"]["cidr"] = [self._chance.choice(("/23", "/24", "/8"))]

    def _query(self, fields: Fields) -> None:
        fields["scheduler_hints"]["query"] = [json.dumps(self._chance.choice(_QUERIES))]

    def _ignored(self, fields: Fields) -> None:
        names = [self._host().name for _ in range(self._chance.choice((1, 5, 20)))]
        fields["ignore_hosts"] = [self._chance.choice((name, name.upper())) for name in names]

    def _forced(self, fields: Fields) -> None:
        host = self._host()
        fields["force_hosts"] = [host.name]
        if self._chance.random() < 0.4:
            fields["force_nodes"] = [host.node]

    def _destination(self, fields: Fields) -> None:
        chance, place = self._chance, objects.Destination(self._context)
        match chance.choice(("host", "node", "both", "cell", "aggregates", "forbidden")):
            case "host":
                place.host = self._host().name
            case "node":
                place.node = self._host().node
            case "both":
                host = self._host()
                place.host, place.node = host.name, host.node
            case "cell":
                place.cell = self._cloud.cells[chance.choice(("cell1", "cell2"))]
                place.allow_cross_cell_move = chance.random() < 0.3
            case "aggregates":
                place.require_aggregates([each.uuid for each in chance.sample(self._cloud.aggregates, 3)])
            case "forbidden":
                place.append_forbidden_aggregates({chance.choice(self._cloud.aggregates).uuid})
        fields["requested_destination"] = place

    def _port(self, fields: Fields) -> None:
        port = objects.RequestGroup(
            requester_id=an_id(self._chance), use_same_provider=True,
            resources={"NET_BW_EGR_KILOBIT_PER_SEC": self._chance.choice((1000, 20000))},
        )  # fmt: skip
        if self._chance.random() < 0.7:
            port.required_traits = {self._chance.choice(("CUSTOM_PHYSNET_A", "CUSTOM_PHYSNET_B"))}
        fields["requested_resources"] = [port]

    def _large(self, fields: Fields) -> None:
        fields["flavor"].memory_mb, fields["flavor"].vcpus = 14000, self._chance.choice((2, 6))

    def _metal(self, fields: Fields) -> None:
        extra = fields["flavor"].extra_specs
        fields["flavor"].extra_specs = {
            **{key: value for key, value in extra.items() if not key.startswith("resources")},
            "resources:CUSTOM_BAREMETAL": "1", "resources:VCPU": "0", "resources:MEMORY_MB": "0",
            "resources:DISK_GB": "0",
        }  # fmt: skip

    def _level(self, fields: Fields) -> None:
        fields["request_level_params"] = objects.RequestLevelParams(
            root_required={self._chance.choice(("CUSTOM_SSD", "CUSTOM_GOLD"))}, root_forbidden=set()
        )

    def _move(self, fields: Fields) -> None:
        """Move an instance: a migration holds its resources, and it may be in a server group."""
        moving = self._chance.choice(sorted(self._cloud.migrating))
        fields["instance_uuid"] = moving
        if self._chance.random() < 0.7:
            fields["ignore_hosts"] = [self._cloud.host_of[moving]]
        groups = [group for group in self._cloud.groups if moving in group.members]
        if groups and self._chance.random() < 0.8:
            self._take_group(fields, groups[0])

    def _rebuild(self, fields: Fields) -> None:
        """Ask whether the host of an instance is good for a new image, as Nova's conductor does."""
        instance = self._chance.choice(sorted(self._cloud.host_of))
        host = next(host for host in self._cloud.hosts if instance in host.instances)
        fields["instance_uuid"] = instance
        if "traits_required" in fields["image"].properties:  # Nova's conductor has compared them before
            fields["image"].properties.traits_required = []
        fields["ignore_hosts"] = None
        fields["requested_destination"] = None
        fields["force_hosts"], fields["force_nodes"] = [host.name], [host.node]
        fields["scheduler_hints"] = {**fields["scheduler_hints"], "_nova_check_type": ["rebuild"]}
