"""Translates flavor and image into groups of resources, devices and traits for the search of candidates."""

import math
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Literal

import os_traits  # type: ignore[import-untyped]

from bus.bare_metal import PROCESSORS
from bus.requests import Flavor, Image, ResourceGroup
from bus.vocabulary import Resources
from scheduler_worker.core.attributes import (
    NUMA_POLICIES,
    GuestSpecs,
    RequestOptions,
    SpecValue,
    Unreadable,
    nearest,
)

_KEY = re.compile(r"(resources|trait)([A-Za-z0-9_-]*):(.*)", re.DOTALL)
_SAME = re.compile(r"same_subtree[A-Za-z0-9_-]*")
_NAME = re.compile(r"[A-Z0-9_]{1,255}")
_ANY = re.compile(r"any[A-Za-z0-9_-]*")
_MAX_SUFFIX = 64

GroupPolicy = Literal["none", "isolate"]
MAX_DEVICES = 64
_ALIAS = re.compile(r"\s*([A-Za-z0-9_-]{1,48})\s*(?::\s*([0-9]{1,3})\s*)?")
_SOUND = ("sb16", "es1370", "pcspk", "ac97", "ich6", "ich9", "usb", "virtio")
_SWITCHES = {
    "hw:virtio_packed_ring": "COMPUTE_NET_VIRTIO_PACKED",
    "hw:firmware_stateless": "COMPUTE_SECURITY_STATELESS_FIRMWARE",
    "hw:ephemeral_encryption": "COMPUTE_EPHEMERAL_ENCRYPTION",
}
_ONLY_WITH = {  # extra spec → the extra spec without which it has no effect, as in Nova
    "hw:tpm_model": "hw:tpm_version",
    "hw:tpm_secret_security": "hw:tpm_version",
    "hw:mem_encryption_model": "hw:mem_encryption",
    "hw:ephemeral_encryption_format": "hw:ephemeral_encryption",
}
_PREFIXES = {  # property → prefix of its traits
    "hw_architecture": "HW_ARCH_",
    "hw_cdrom_bus": "COMPUTE_STORAGE_BUS_",
    "hw_disk_bus": "COMPUTE_STORAGE_BUS_",
    "hw_emulation_architecture": "COMPUTE_ARCH_",
    "hw_video_model": "COMPUTE_GRAPHICS_MODEL_",
    "hw_vif_model": "COMPUTE_NET_VIF_MODEL_",
}
_TYPES = "COMPUTE_IMAGE_TYPE_"


@dataclass(slots=True)
class GroupDraft:
    """A draft of a request group: the amount of each resource class, and traits with their origin."""

    resources: Resources = field(default_factory=dict)
    required: dict[str, str] = field(default_factory=dict)
    forbidden: dict[str, str] = field(default_factory=dict)
    any_of: dict[str, list[str]] = field(default_factory=dict)  # label → traits, of which one is required

    @property
    def wanted(self) -> Resources:
        return {name: amount for name, amount in self.resources.items() if amount > 0}


@dataclass(slots=True)
class QuestionDraft:
    """A draft of the search for candidates: request groups by suffix, and traits that hosts must have."""

    where: str  # the request's field that contains the flavor, for error messages
    groups: dict[str, GroupDraft] = field(default_factory=lambda: {"": GroupDraft()})
    policy: GroupPolicy = "none"
    same: list[tuple[str, ...]] = field(default_factory=list)
    isolated: tuple[str, ...] = ()
    root_required: dict[str, str] = field(default_factory=dict)  # trait → its source in the request
    root_forbidden: dict[str, str] = field(default_factory=dict)
    preferred: dict[str, float] = field(default_factory=dict)
    preferred_amounts: dict[str, tuple[int, float]] = field(default_factory=dict)  # class → amount, weight

    def ask(self, suffix: str, resource_class: str, amount: int) -> None:
        resources = self.groups.setdefault(suffix, GroupDraft()).resources
        resources[resource_class] = resources.get(resource_class, 0) + amount

    def asked(self) -> Iterator[ResourceGroup]:
        """Yield the request groups that have resources or that `same_subtree` names."""
        tied = {suffix for suffixes in self.same for suffix in suffixes}
        for suffix, group in self.groups.items():
            resources = group.wanted
            if not resources and suffix not in tied:
                if group.required or group.forbidden or group.any_of:
                    group_name = f"group {suffix!r}" if suffix else "the group without a suffix"
                    raise Unreadable(f"{self.where}.extra_specs: {group_name} has traits but no resources")
                continue
            yield ResourceGroup(
                suffix=suffix,
                resources=resources,
                required=tuple(sorted(group.required)),
                forbidden=tuple(sorted(group.forbidden)),
                required_any=tuple(tuple(sorted(some)) for some in group.any_of.values()),
            )

    def settle_traits(self) -> None:
        """Apply the traits of the group without suffix to the root provider if the group has no resources.
        Raise Unreadable for contradicting traits."""
        group = self.groups[""]
        if not group.wanted and not group.any_of:
            self.root_required |= group.required
            self.root_forbidden |= group.forbidden
            group.required, group.forbidden = {}, {}
        pairs = [(each_group.required, each_group.forbidden) for each_group in self.groups.values()]
        for required, forbidden in (*pairs, (self.root_required, self.root_forbidden)):
            for name in required:
                if name in forbidden:
                    why = f"required by {required[name]}, forbidden by {forbidden[name]}"
                    raise Unreadable(f"trait {name}: {why}")
        for each_group in self.groups.values():
            for some in each_group.any_of.values():
                if each_group.forbidden.keys() >= set(some):
                    why = f"one of {', '.join(some)} is wanted, and all are forbidden"
                    raise Unreadable(f"{self.where}.extra_specs: {why}")


def draft_of(flavor: Flavor, where: str) -> QuestionDraft:
    """Return the resources and traits of the flavor as request groups of placement.

    `resources:CLASS` and `trait:NAME` without a suffix may come from several providers of a tree;
    `resources1:CLASS` and `trait1:NAME` must come from one. `group_policy` is none or isolate, and
    `same_subtree` lists suffixes; `same_subtree2` and so on list more sets of them.
    """
    draft = QuestionDraft(where)
    for key, value in flavor.extra_specs.items():
        parts = _KEY.fullmatch(key)
        if parts is None:
            continue  # the extra spec requests no resources or traits
        kind, suffix, name = parts.groups()
        spec = SpecValue(value, f"{where}.extra_specs[{key!r}]")
        if len(suffix) > _MAX_SUFFIX:
            raise Unreadable(f"{spec.at}: a suffix of {len(suffix)} characters, at most {_MAX_SUFFIX}")
        if not _NAME.fullmatch(name):
            raise Unreadable(f"{spec.at}: {name!r} is no {kind.removesuffix('s')} name (A-Z, 0-9 and _)")
        if kind == "resources" and value.startswith("preferred:"):
            _amount(draft, suffix, name, spec)
        elif kind == "resources":
            draft.groups.setdefault(suffix, GroupDraft()).resources[name] = spec.whole()
        else:
            _trait(draft, suffix, name, spec)
    policy = flavor.extra_specs.get("group_policy", "none")
    if policy not in ("none", "isolate"):
        raise Unreadable(f"{where}.extra_specs['group_policy']: {policy!r} is neither 'none' nor 'isolate'")
    draft.policy = "isolate" if policy == "isolate" else "none"
    return draft


def _trait(draft: QuestionDraft, suffix: str, name: str, spec: SpecValue) -> None:
    group = draft.groups.setdefault(suffix, GroupDraft())
    keyword, colon, number = spec.value.partition(":")
    if keyword == "preferred":
        if suffix:
            raise Unreadable(f"{spec.at}: preferred traits are of the host: write the key without a suffix")
        draft.preferred[name] = _weight(number, spec) if colon else 1.0
    elif spec.value == "required":
        group.required[name] = spec.at
    elif spec.value == "forbidden":
        group.forbidden[name] = spec.at
    elif _ANY.fullmatch(spec.value):
        group.any_of.setdefault(spec.value, []).append(name)
    else:
        raise Unreadable(f"{spec.at}: {spec.value!r} is none of required, forbidden, preferred, any")


def _amount(draft: QuestionDraft, suffix: str, name: str, spec: SpecValue) -> None:
    if suffix:
        raise Unreadable(f"{spec.at}: preferred amounts are of the host: write the key without a suffix")
    number, colon, weight = spec.value.removeprefix("preferred:").partition(":")
    amount = SpecValue(number, spec.at).whole(1)
    draft.preferred_amounts[name] = amount, _weight(weight, spec) if colon else 1.0


def _weight(number: str, spec: SpecValue) -> float:
    try:
        weight = float(number)
    except ValueError:
        weight = math.nan
    if not math.isfinite(weight) or not weight:
        raise Unreadable(f"{spec.at}: {number!r} is not a weight: a number other than 0")
    return weight


def tie(draft: QuestionDraft, flavor: Flavor) -> None:
    suffixes: Collection[str] = draft.groups
    for key, value in flavor.extra_specs.items():
        if _SAME.fullmatch(key):
            named_suffixes = tuple(dict.fromkeys(part.strip() for part in value.split(",")))
            for suffix in named_suffixes:
                if not suffix or suffix not in suffixes:
                    at = f"{draft.where}.extra_specs[{key!r}]"
                    raise Unreadable(f"{at}: there is no group with suffix {suffix!r}")
            draft.same.append(named_suffixes)


def fill(draft: QuestionDraft, flavor: Flavor) -> None:
    """Add to the draft request the flavor's vcpus, memory and disk, unless extra specs set the amounts of
    their resource classes.
    """
    requested = {name for group in draft.groups.values() for name in group.resources}
    resources = draft.groups[""].resources
    if PROCESSORS.isdisjoint(requested):
        resources["VCPU"] = flavor.vcpus
    for name, amount in (("MEMORY_MB", flavor.memory_mb), ("DISK_GB", flavor.disk_gb)):
        if name not in requested:
            resources[name] = amount


def _traits(prefix: str, *values: str) -> dict[str, str]:
    return {value: prefix + re.sub(r"[-.]", "_", value.upper()) for value in values}


_MODELS = _traits("HW_CPU_X86_", "amd-sev", "amd-sev-es", "amd-sev-snp", "intel-tdx")
_DEFAULT_MODEL = "amd-sev"
# Values of extra specs → the trait that the host must have; empty: none.
_TRAITS = {
    "hw:tpm_version": _traits("COMPUTE_SECURITY_TPM_", "1.2", "2.0"),
    "hw:tpm_model": _traits("COMPUTE_SECURITY_", "tpm-tis", "tpm-crb"),
    "hw:tpm_secret_security": _traits("COMPUTE_SECURITY_TPM_SECRET_SECURITY_", "user", "host", "deployment"),
    "os:secure_boot": {"required": "COMPUTE_SECURITY_UEFI_SECURE_BOOT", "optional": "", "disabled": ""},
    "hw:maxphysaddr_mode": {
        "passthrough": "COMPUTE_ADDRESS_SPACE_PASSTHROUGH",
        "emulate": "COMPUTE_ADDRESS_SPACE_EMULATED",
    },
    "hw:viommu_model": _traits("COMPUTE_VIOMMU_MODEL_", "intel", "smmuv3", "virtio", "auto"),
    "hw:sound_model": _traits("COMPUTE_SOUND_MODEL_", *_SOUND),
    "hw:ephemeral_encryption_format": _traits("COMPUTE_EPHEMERAL_ENCRYPTION_", "luks", "plain"),
}
_TOPOLOGY = """
    hw:cpu_policy hw:cpu_thread_policy hw:cpu_dedicated_mask hw:emulator_threads_policy hw:numa_nodes
    hw:mem_page_size hw:mem_encryption hw:pmem hw:pci_numa_affinity_policy pci_passthrough:alias
"""
# Extra specs from which request groups and required traits are made.
READ = frozenset({*_TRAITS, *_SWITCHES, *_ONLY_WITH, *_TOPOLOGY.split(), "group_policy", "same_subtree"})


def add_capabilities(draft: QuestionDraft, specs: GuestSpecs) -> None:
    """Add to the draft request the host traits and memory encryption context that extra specs require."""
    for key, known in _TRAITS.items():
        spec = specs.get(key) if _has_effect(key, specs) else None
        if spec is not None and (trait := known[spec.one_of(*known)]):
            draft.root_required[trait] = spec.at
    for key, trait in _SWITCHES.items():
        spec = specs.get(key)
        if spec is not None and spec.yes():
            draft.root_required[trait] = spec.at
    model, version = specs.get("hw:tpm_model"), specs.get("hw:tpm_version")
    if model is not None and version is not None and (model.value, version.value) == ("tpm-crb", "1.2"):
        raise Unreadable(f"{model.at}: 'tpm-crb', and {version.at}: '1.2': it is of version 2.0")
    _add_encryption(draft, specs)
    if (spec := specs.of_flavor("hw:pmem")) is not None:
        for label in spec.value.split(","):
            name = label.strip().upper()
            if not re.fullmatch(r"[A-Z0-9_]{1,200}", name):
                raise Unreadable(f"{spec.at}: {label!r} is no name of a namespace")
            draft.ask("", f"CUSTOM_PMEM_NAMESPACE_{name}", 1)


def _has_effect(key: str, specs: GuestSpecs) -> bool:
    """Return whether the extra spec that `key` needs is present, and not false if it is true or false."""
    if (other := _ONLY_WITH.get(key)) is None:
        return True
    spec = specs.get(other)
    return spec is not None and (other not in _SWITCHES or spec.yes())


def _add_encryption(draft: QuestionDraft, specs: GuestSpecs) -> None:
    spec = specs.get("hw:mem_encryption")
    if spec is None or not spec.yes():
        return
    firmware = specs.of_image("hw_firmware_type")
    if firmware is not None and firmware.value.lower() != "uefi":
        raise Unreadable(f"{spec.at}: it needs UEFI, and {firmware.at}: {firmware.value!r}")
    draft.ask("_mem_encryption", "MEM_ENCRYPTION_CONTEXT", 1)
    model = specs.one_of("hw:mem_encryption_model", *_MODELS) or _DEFAULT_MODEL
    draft.groups["_mem_encryption"].required[_MODELS[model]] = spec.at


def add_devices(
    draft: QuestionDraft, specs: GuestSpecs, options: RequestOptions, cells: int, *, near: bool = True
) -> bool:
    """Add a request group for each PCI device. With NUMA affinity, device n is near NUMA cell n of the
    guest's `cells`. With `near`, the NUMA policy "preferred" counts as "required". Return whether any device
    prefers affinity.
    """
    spec = specs.of_flavor("pci_passthrough:alias")
    alternative = specs.one_of("hw:pci_numa_affinity_policy", *NUMA_POLICIES)
    if spec is None:
        return False
    number, prefers = 0, False
    for part in spec.value.split(","):
        match = _ALIAS.fullmatch(part)
        if match is None:
            raise Unreadable(f"{spec.at}: {part.strip()!r} is no alias with a number, as in a1:2,b:1")
        name, count = match[1], int(match[2] or 1)
        alias = options.pci_aliases.get(name)
        if alias is None:
            alike = nearest(name, options.pci_aliases)
            raise Unreadable(f"{spec.at}: there is no alias {name!r} (the setting pci_aliases){alike}")
        if not count or number + count > MAX_DEVICES:
            raise Unreadable(f"{spec.at}: {count} of {name!r}: from 1 to {MAX_DEVICES} devices in all")
        for _ in range(count):
            suffix = f"_pci{number}_{name}"
            draft.ask(suffix, alias.resource_class, 1)
            draft.groups[suffix].required |= dict.fromkeys(alias.traits, spec.at)
            policy = alternative or alias.numa_policy
            prefers = prefers or (policy == "preferred" and cells > 0)
            if cells and (policy == "required" or (policy == "preferred" and near)):
                draft.same.append((f"_numa{number % cells}", suffix))
            elif policy == "socket":
                draft.root_required["COMPUTE_SOCKET_PCI_NUMA_AFFINITY"] = spec.at
            number += 1
    return prefers


def add_image(draft: QuestionDraft, image: Image | None, options: RequestOptions) -> None:
    """Add to the draft request the traits that the image requires. If enabled in `options`, also add traits
    for the image's properties and disk format."""
    if image is None:
        return
    required = draft.groups[""].required
    for name in image.traits_required:
        required.setdefault(name, "image.traits_required")
    for key, value in image.properties.items():
        at = f"image.properties[{key!r}]"
        if key.startswith("trait:"):
            if value != "required":
                raise Unreadable(f"{at}: {value!r}: an image can only have it required")
            required.setdefault(key.removeprefix("trait:"), at)
        elif key in _PREFIXES and options.image_metadata_traits:
            draft.root_required[_image_trait(_PREFIXES[key], value, at)] = at
        elif key == "disk_format" and options.image_type_traits:
            draft.root_required[_image_trait(_TYPES, value, at)] = at


def _image_trait(prefix: str, value: str, at: str) -> str:
    name = prefix + value.strip().replace("-", "_").upper()
    known = set(os_traits.get_traits(prefix=prefix))
    if name not in known:
        values = [trait.removeprefix(prefix).lower() for trait in known]
        raise Unreadable(f"{at}: no host can report {value!r}{nearest(value.lower(), values)}")
    return name
