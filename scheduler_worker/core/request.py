"""Translates each flavor of a build request into a search of candidates, or refuses the request.

Limits from aggregates' metadata and disabled cells are computed once per change of aggregates or cells.
"""

import ipaddress
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, reduce
from itertools import islice
from math import gcd
from operator import or_
from typing import Literal, NamedTuple

import msgspec
import os_traits  # type: ignore[import-untyped]

from bus.aggregates import Aggregate
from bus.cells import RegisteredCell
from bus.host_health import DISABLED
from bus.messages import BuildRequested
from bus.queries import FindCandidates
from bus.requests import Flavor, Image, ResourceGroup
from bus.resources import PROCESSORS
from bus.vocabulary import MAX_INT, Resources
from scheduler_worker.core.order import flavors_of
from scheduler_worker.core.policy import FILTER_BOOK
from scheduler_worker.core.rule import (
    MAX_NOTES,
    NUMA_POLICIES,
    Alternative,
    GuestSpecs,
    RequestOptions,
    SpecValue,
    Unreadable,
    nearest,
    unknown,
)
from scheduler_worker.core.rules import TENANT, listed

# Section: translates flavor and image into groups of resources, devices and traits for the search of
# candidates.


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


# Section: translates the guest's NUMA cells, dedicated processors and page sizes into request groups.
#
# Each NUMA cell of the guest is a group, `_numa0` and so on, that one provider must supply: a NUMA cell of
# the host, or the host itself if it reports no NUMA cells.


HYPERTHREADING = "HW_CPU_HYPERTHREADING"
MAX_CELLS = 64
MAX_CPUS = 100_000
SMALL_KB = 4
_LARGE_KB = (1024**2, 2 * 1024)  # 1 GB and 2 MB, the sizes that `hw:mem_page_size=large` permits
_SIZE = re.compile(r"([0-9]{1,9})\s*(|[kmg]i?b?)", re.IGNORECASE)
_UNITS = {"": 1, "k": 1, "m": 1024, "g": 1024**2}
_RANGE = re.compile(r"\s*(\^?)(\d{1,6})(?:-(\d{1,6}))?\s*")


def _page_class(kb: int) -> str:
    for unit, size in (("GB", 1024**2), ("MB", 1024)):
        if kb % size == 0:
            return f"CUSTOM_MEMORY_PAGES_{kb // size}{unit}"
    return f"CUSTOM_MEMORY_PAGES_{kb}KB"


@dataclass(frozen=True)
class GuestCell:
    """A NUMA cell of the guest: its processors as a bit mask (bit n is processor n), and its memory."""

    cpus: int
    memory_mb: int


def page_choices(specs: GuestSpecs) -> tuple[int, ...]:
    """Return the page sizes in KB that a guest accepts, the best first; 0 stands for ordinary memory."""
    spec = _page_size(specs)
    text = "small" if spec is None else spec.value.strip().lower()
    if spec is None or text == "small":
        return (0,)
    if text not in ("large", "any"):
        kb = _page_kb(spec)
        return (0 if kb == SMALL_KB else kb,)
    memory = gcd(*(cell.memory_mb for cell in _cells(specs))) * 1024  # KB that divide each cell's memory
    fitting = [kb for kb in _LARGE_KB if memory % kb == 0]
    if text == "any":
        return (*fitting, 0)
    if not fitting:
        why = f"what a cell gets of {specs.flavor.memory_mb} is no multiple of a large page"
        also = f"(1GB, 2MB), and {spec.at}: {spec.value!r}"
        raise Unreadable(f"{specs.where}.memory_mb: {why} {also}")
    return tuple(fitting)


def _page_size(specs: GuestSpecs) -> SpecValue | None:
    flavor, image = specs.of_flavor("hw:mem_page_size"), specs.of_image("hw_mem_page_size")
    if image is None:
        return flavor
    text = flavor.value.strip().lower() if flavor is not None else ""
    if flavor is None or text not in ("large", "any"):
        if flavor is not None and text == image.value.strip().lower():
            return flavor
        other = f"{flavor.at}: {flavor.value!r}" if flavor is not None else "the flavor does not set it"
        raise Unreadable(f"{image.at}: only for a flavor whose hw:mem_page_size is large or any; {other}")
    chosen = image.value.strip().lower()
    is_small = chosen == "small" or (chosen not in ("any", "large") and _page_kb(image) == SMALL_KB)
    if text == "large" and is_small:
        raise Unreadable(f"{flavor.at}: {flavor.value!r}, and {image.at}: {image.value!r}")
    return flavor if chosen == "any" else image


def _page_kb(spec: SpecValue) -> int:
    parts = _SIZE.fullmatch(spec.value.strip())
    kb = int(parts[1]) * _UNITS[parts[2][:1].lower()] if parts else 0
    if not 0 < kb <= MAX_INT:
        raise Unreadable(f"{spec.at}: {spec.value!r} is none of small, large, any and no size (2MB, 1GB)")
    return kb


def add_numa_cells(draft: QuestionDraft, specs: GuestSpecs, page_kb: int) -> int:
    """Add a request group for each NUMA cell of the guest, with pages of `page_kb`; return the number of
    cells, or 0 without a NUMA topology.
    """
    policy = specs.one_of("hw:cpu_policy", "shared", "dedicated", "mixed") or "shared"
    pinned = policy != "shared"
    dedicated = _dedicated(specs, policy)
    nodes = specs.get("hw:numa_nodes")
    one_more = specs.one_of("hw:emulator_threads_policy", "share", "isolate") == "isolate"
    threads = specs.one_of("hw:cpu_thread_policy", "prefer", "isolate", "require")
    for key, requested in (("hw:cpu_thread_policy", bool(threads)), ("hw:emulator_threads_policy", one_more)):
        if requested and not pinned:
            raise Unreadable(f"{_at(specs, key)}: only with hw:cpu_policy=dedicated or mixed")
    if nodes is None:
        for prefix in ("hw:numa_cpus.", "hw:numa_mem."):
            for _, spec in specs.numbered(prefix):
                raise Unreadable(f"{spec.at}: only with hw:numa_nodes")
    if nodes is None and not pinned and specs.of_flavor("hw:mem_page_size") is None:
        return 0
    cells = _cells(specs)
    _alone(draft, specs, page_kb)
    if threads == "require":
        draft.root_required[HYPERTHREADING] = _at(specs, "hw:cpu_thread_policy")
    elif threads == "isolate":
        draft.root_forbidden[HYPERTHREADING] = _at(specs, "hw:cpu_thread_policy")
    for number, cell in enumerate(cells):
        suffix = f"_numa{number}"
        draft.groups.setdefault(suffix, GroupDraft())
        pinned_cpus = (cell.cpus & dedicated).bit_count()
        draft.ask(suffix, "VCPU", cell.cpus.bit_count() - pinned_cpus)
        draft.ask(suffix, "PCPU", pinned_cpus + (one_more and number == 0))
        _ask_memory(draft, suffix, cell.memory_mb, page_kb, specs.where)
    if len(cells) > 1:
        draft.isolated = tuple(f"_numa{number}" for number in range(len(cells)))
    return len(cells)


def _dedicated(specs: GuestSpecs, policy: str) -> int:
    mask = specs.get("hw:cpu_dedicated_mask")
    if policy != "mixed":
        if mask is not None:
            raise Unreadable(f"{mask.at}: only with hw:cpu_policy=mixed")
        return -1 if policy == "dedicated" else 0  # -1: every bit is set
    at = _at(specs, "hw:cpu_policy")
    if mask is None:
        raise Unreadable(f"{at}: mixed needs hw:cpu_dedicated_mask, the list of dedicated processors")
    count = _cpu_count(specs)
    numbers = _numbers(mask, count)
    if not numbers or numbers.bit_count() == count:
        why = f"must name some and not all of the {count} processors ({specs.where}.vcpus), for {at} is mixed"
        raise Unreadable(f"{mask.at}: {mask.value!r} {why}")
    return numbers


def _cells(specs: GuestSpecs) -> list[GuestCell]:
    flavor, where, nodes = specs.flavor, specs.where, specs.get("hw:numa_nodes")
    count = 1 if nodes is None else nodes.whole(1, MAX_CELLS)
    vcpus = _cpu_count(specs)
    cpus, memory = dict(specs.numbered("hw:numa_cpus.")), dict(specs.numbered("hw:numa_mem."))
    for requested in (cpus, memory):
        for number, spec in requested.items():
            if number >= count:
                raise Unreadable(f"{spec.at}: there are {count} cells (hw:numa_nodes), the first is 0")
    if not cpus and not memory:
        for name, amount in (("vcpus", vcpus), ("memory_mb", flavor.memory_mb)):
            if amount % count:
                why = f"{amount} does not divide by {count} (hw:numa_nodes)"
                how = "assign processors and memory to cells with hw:numa_cpus.N and hw:numa_mem.N"
                raise Unreadable(f"{where}.{name}: {why}: {how}")
        each, size = vcpus // count, flavor.memory_mb // count
        return [GuestCell(_span(n * each, n * each + each - 1), size) for n in range(count)]
    for name, requested in (("hw:numa_cpus", cpus), ("hw:numa_mem", memory)):
        for number in range(count):
            if number not in requested:
                raise Unreadable(f"{where}.extra_specs: {name}.{number} is missing: set it for every cell")
    cells = [GuestCell(_numbers(cpus[n], vcpus), memory[n].whole(1)) for n in range(count)]
    union = reduce(or_, (cell.cpus for cell in cells))
    if sum(cell.cpus.bit_count() for cell in cells) != vcpus or union != _span(0, vcpus - 1):
        why = f"must name each of the {vcpus} processors ({where}.vcpus) once"
        raise Unreadable(f"{where}.extra_specs: hw:numa_cpus.0 to .{count - 1} {why}")
    together = sum(cell.memory_mb for cell in cells)
    if together != flavor.memory_mb:
        why = f"are {together} together, and {where}.memory_mb is {flavor.memory_mb}"
        raise Unreadable(f"{where}.extra_specs: hw:numa_mem.0 to .{count - 1} {why}")
    return cells


def _alone(draft: QuestionDraft, specs: GuestSpecs, page_kb: int) -> None:
    classes = {"VCPU", "PCPU", "MEMORY_MB", *([_page_class(page_kb)] if page_kb else [])}
    spec = specs.get("hw:numa_nodes") or specs.get("hw:cpu_policy") or specs.of_flavor("hw:mem_page_size")
    for suffix, group in draft.groups.items():
        for name in group.resources:
            if name in classes:
                also = f"{draft.where}.extra_specs['resources{suffix}:{name}'], and {spec.at if spec else ''}"
                raise Unreadable(f"{also}: request processors and memory by one of them")


def _ask_memory(draft: QuestionDraft, suffix: str, mb: int, page_kb: int, where: str) -> None:
    resources = draft.groups[suffix].resources
    if not page_kb:
        resources["MEMORY_MB"] = mb
        return
    if mb * 1024 % page_kb:
        raise Unreadable(f"{where}.memory_mb: {mb} of a cell is no multiple of its pages of {page_kb} KB")
    resources[_page_class(page_kb)] = mb * 1024 // page_kb
    draft.groups[""].resources.setdefault("MEMORY_MB", 0)  # 0: the guest's memory is requested as pages


def _cpu_count(specs: GuestSpecs) -> int:
    vcpus = specs.flavor.vcpus
    if not 0 < vcpus <= MAX_CPUS:
        raise Unreadable(f"{specs.where}.vcpus: {vcpus}: a guest with a topology has from 1 to {MAX_CPUS}")
    return vcpus


def _span(first: int, last: int) -> int:
    return (1 << last + 1) - (1 << first)


def _numbers(spec: SpecValue, count: int) -> int:
    """Convert a list of processors such as `0-3,^1,6`, all below `count`, to a bit mask."""
    in_ = out = 0
    for part in spec.value.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise Unreadable(f"{spec.at}: {spec.value!r} is no list of processors (0-3,^1,6)")
        first, last = int(match[2]), int(match[3] or match[2])
        if last < first or last > MAX_CPUS:
            raise Unreadable(f"{spec.at}: {part.strip()!r} is no range of processors")
        if match[1]:
            out |= _span(first, last)
        else:
            in_ |= _span(first, last)
    named = in_ & ~out
    if strange := named >> count:
        first = count + (strange & -strange).bit_length() - 1
        raise Unreadable(f"{spec.at}: there is no processor {first}: the guest has {count}")
    return named


def _at(specs: GuestSpecs, key: str) -> str:
    spec = specs.get(key)
    assert spec is not None
    return spec.at


MAX_GROUPS = 200

# what a request names: cell, zone, aggregates, excluded aggregates
_Place = tuple[str, str, tuple[tuple[str, ...], ...], tuple[str, ...]]

_shapes = msgspec.json.Encoder(order="deterministic")
_places = msgspec.json.Decoder(tuple[str, Flavor, Image | None, _Place])
NOBODY = "00000000-0000-0000-0000-000000000000"  # id of an aggregate that has no hosts

Named = Callable[[str], Sequence[str]]  # returns the roots of the hosts with a name or root


def check_hints(request: BuildRequested) -> tuple[str, ...]:
    """Return a warning for each scheduler hint that has no effect. Raise Unreadable if a hint is invalid."""
    hints = request.hints
    both = set(hints.same_host) & set(hints.different_host)
    if both:
        raise Unreadable(f"hints.same_host and hints.different_host both name {min(both)}")
    for hint in ("same_host", "different_host"):
        named_instances = set(getattr(hints, hint)) & set(request.instances)
        if named_instances:
            raise Unreadable(f"hints.{hint}: {min(named_instances)} is one of the instances asked for")
    for hint, check in FILTER_BOOK.checks.items():
        if value := getattr(hints, hint):
            try:
                check(value)
            except ValueError as problem:
                raise Unreadable(f"hints.{hint}: {problem}") from None
    if hints.build_near_host_ip:
        try:
            near = ipaddress.ip_address(hints.build_near_host_ip)
        except ValueError:
            why = f"{hints.build_near_host_ip!r} is no IP address"
            raise Unreadable(f"hints.build_near_host_ip: {why}") from None
        bits = hints.cidr.removeprefix("/")
        if not bits.isdecimal() or int(bits) > near.max_prefixlen:
            raise Unreadable(f"hints.cidr: {hints.cidr!r} is none of /0 to /{near.max_prefixlen}")
    elif hints.cidr != "/24":
        return ("hints.cidr: means something only with hints.build_near_host_ip",)
    return ()


def destination(
    request: BuildRequested, named: Named, names: Callable[[], Iterable[str]]
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Return the roots of the hosts that a request permits (empty: all), the roots that it excludes, and
    warnings about excluded hosts that do not exist. `named` returns the roots of hosts by name or root;
    `names` returns all host names, to suggest a similar name.
    """
    ignored: dict[str, str] = {}
    notes: list[str] = []
    for host in request.ignore_hosts:
        roots = named(host)
        if not roots and len(notes) < MAX_NOTES:
            notes.append(f"ignore_hosts: there is no host {host!r}{nearest(host, names())}")
        ignored |= dict.fromkeys(roots, host)
    wanted: dict[str, set[str]] = {}
    for hint in ("forced_host", "wanted_host"):
        host = getattr(request, hint)
        if not host:
            continue
        roots = named(host)
        if not roots:
            raise Unreadable(f"{hint}: there is no host {host!r}{nearest(host, names())}")
        if ignored.keys() >= set(roots):
            raise Unreadable(f"{hint}: {host!r} is among ignore_hosts")
        wanted[hint] = set(roots)
    if len(wanted) == 2 and not wanted["forced_host"] & wanted["wanted_host"]:
        raise Unreadable(f"forced_host: {request.forced_host!r}, but wanted_host: {request.wanted_host!r}")
    only: set[str] = set.intersection(*wanted.values()) if wanted else set()
    return tuple(sorted(only)), tuple(sorted(ignored)), tuple(notes)


class _FlavorRead(NamedTuple):
    """One flavor and image, parsed: the search of candidates, preferred traits and amounts, and warnings."""

    question: FindCandidates
    preferred: dict[str, float]  # preferred trait → weight
    preferred_amounts: dict[str, tuple[int, float]]
    notes: tuple[str, ...]
    prefers_near_devices: bool = False


def alternatives_of(
    request: BuildRequested, options: RequestOptions, named: Named, names: Callable[[], Iterable[str]] = tuple
) -> tuple[Alternative, ...]:
    """Return an alternative for each flavor and acceptable page size, in the sequence of preference.

    A device that prefers a NUMA cell of the guest yields two alternatives: with the affinity, then without.

    Raise Unreadable if the request contradicts itself. `named` returns the roots of all hosts with a given
    name or root; `names` returns all host names, to suggest a similar name for an unknown one.
    """
    _check(request, options)
    notes = check_hints(request)
    only: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    if request.forced_host or request.wanted_host or request.ignore_hosts:
        only, never, unknown_ = destination(request, named, names)
        notes += unknown_
    alternatives = []
    for alternative_index, flavor in enumerate(flavors_of(request)):
        place = (request.cell, request.zone, request.aggregates, request.not_aggregates)
        where = f"or_else[{alternative_index - 1}]" if alternative_index else "flavor"
        if request.parts.sections:
            where = request.parts.sections[alternative_index].where
        asked = _shapes.encode((where, flavor, request.image, place))
        every_read = _read(asked, options)
        # For a section, only the preferred page size and NUMA affinity are tried.
        for question, preferred, amounts, read_notes, _ in (
            every_read[:1] if request.parts.sections else every_read
        ):
            if only or never:
                question = msgspec.structs.replace(question, roots=only, not_roots=never)
            question = with_further_groups(question, request)
            if request.preferred_traits:
                preferred = {**preferred, **request.preferred_traits}
                bare = next((group for group in question.groups if not group.suffix), None)
                barred = {*question.root_forbidden, *(bare.forbidden if bare is not None else ())}
                if wrong := [name for name in request.preferred_traits if name in barred]:
                    why = "is forbidden (by the flavor, or on every host)"
                    raise Unreadable(f"preferred_traits: {wrong[0]} {why}")
            every = (*notes, *read_notes) if notes else read_notes
            alternatives.append(
                Alternative(request, flavor, question, alternative_index, every, preferred, amounts)
            )
    return tuple(alternatives)


def with_further_groups(question: FindCandidates, request: BuildRequested) -> FindCandidates:
    """Return the search extended by the resource groups and traits that the request requires in addition to
    its flavor.
    """
    if request.not_cells:
        question = msgspec.structs.replace(question, not_cells=request.not_cells)
    if not (request.groups or request.root_required or request.root_forbidden or request.same_subtree):
        return question
    suffixes = {group.suffix for group in question.groups}
    for position, group in enumerate(request.groups):
        if not group.suffix or group.suffix in suffixes:
            raise Unreadable(f"groups[{position}].suffix: {group.suffix!r} is empty or used before")
        suffixes.add(group.suffix)
    for position, tied in enumerate(request.same_subtree):
        if strange := set(tied) - suffixes:
            raise Unreadable(f"same_subtree[{position}]: there is no group {min(strange)!r}")
    if both := set(request.root_required) & set(request.root_forbidden):
        raise Unreadable(f"root_required and root_forbidden both name {min(both)}")
    groups = (*question.groups, *request.groups)
    if len(groups) > MAX_GROUPS:
        raise Unreadable(f"groups: {len(groups)} groups with those of the flavor, at most {MAX_GROUPS}")
    return msgspec.structs.replace(
        question,
        groups=groups,
        same_subtree=(*question.same_subtree, *request.same_subtree),
        root_required=tuple(sorted({*question.root_required, *request.root_required})),
        root_forbidden=tuple(sorted({*question.root_forbidden, *request.root_forbidden})),
    )


def _check(request: BuildRequested, options: RequestOptions) -> None:
    for part in request.parts:
        if wrong := part.contradiction(request, options):
            raise Unreadable(wrong)
    if request.at_least > len(set(request.instances)):
        raise Unreadable(f"at_least: {request.at_least}, of {len(set(request.instances))} instances")
    if "," in request.zone:
        raise Unreadable(f"zone: {request.zone!r}: one zone; its name contains no comma")
    for position, any_of in enumerate(request.aggregates):
        if not any_of:
            raise Unreadable(f"aggregates[{position}]: an empty list, which no host can meet")
        if set(any_of) <= set(request.not_aggregates):
            raise Unreadable(f"aggregates[{position}]: all of it is among not_aggregates")


@lru_cache(maxsize=1024)
def _read(asked: bytes, options: RequestOptions) -> tuple[_FlavorRead, ...]:
    where, flavor, image, place = _places.decode(asked)
    specs = GuestSpecs(flavor, image, where)
    notes = tuple(islice(unknown(flavor, where, READ, FILTER_BOOK.scopes, options.unscoped), MAX_NOTES))
    found = []
    for page_kb in page_choices(specs):
        near = _with_pages(specs, image, place, options, page_kb)
        found.append(near)
        if near.prefers_near_devices:
            found.append(_with_pages(specs, image, place, options, page_kb, near=False))
    return tuple([read._replace(notes=notes) for read in found])


def _with_pages(
    specs: GuestSpecs,
    image: Image | None,
    place: _Place,
    options: RequestOptions,
    page_kb: int,
    *,
    near: bool = True,
) -> _FlavorRead:
    flavor = specs.flavor
    draft = draft_of(flavor, specs.where)
    cells = add_numa_cells(draft, specs, page_kb)
    prefers = add_devices(draft, specs, options, cells, near=near)
    add_capabilities(draft, specs)
    add_image(draft, image, options)
    fill(draft, flavor)
    tie(draft, flavor)
    draft.settle_traits()
    question = _question(draft, place)
    return _FlavorRead(question, draft.preferred, draft.preferred_amounts, (), prefers)


def _question(draft: QuestionDraft, place: _Place) -> FindCandidates:
    cell, zone, aggregates, not_aggregates = place
    groups = tuple(draft.asked())
    if not any(group.resources for group in groups):
        raise Unreadable(f"{draft.where}: it asks for no resources at all")
    if len(groups) > MAX_GROUPS:
        raise Unreadable(f"{draft.where}.extra_specs: {len(groups)} groups, at most {MAX_GROUPS}")
    return FindCandidates(
        groups=groups,
        group_policy=draft.policy,
        isolated=draft.isolated if draft.policy == "none" else (),
        same_subtree=tuple(draft.same),
        root_required=tuple(sorted(draft.root_required)),
        root_forbidden=tuple(sorted({*draft.root_forbidden, DISABLED})),
        root_member_of=aggregates,
        root_not_member_of=not_aggregates,
        cell=cell,
        zone=zone,
    )


@dataclass(frozen=True)
class Prefilters:
    """Limits that operators set for all requests: aggregates for certain projects or traits only, and
    disabled cells."""

    of_tenant: Mapping[str, tuple[str, ...]] | None = None  # project → its aggregates; None: no limits
    tenants_need_one: bool = False
    demanding: tuple[tuple[str, frozenset[str]], ...] = ()  # aggregate, the traits it requires
    closed: tuple[str, ...] = ()  # names of the disabled cells

    def narrow(self, alternative: Alternative) -> Alternative:
        """Return a flavor of a request with its search restricted to hosts that operators' limits permit."""
        question, notes = alternative.question, alternative.notes
        if self.of_tenant is not None:
            tenant_aggregates = self.of_tenant.get(alternative.request.project)
            if tenant_aggregates is None and self.tenants_need_one:
                tenant_aggregates = (NOBODY,)
                notes = (*notes, f"no aggregate is for project {alternative.request.project} ({TENANT})")
            if tenant_aggregates is not None:
                member_of = (*question.root_member_of, tenant_aggregates)
                question = msgspec.structs.replace(question, root_member_of=member_of)
        if self.demanding:
            # As in Nova, traits of the flavor and the image count here, but not traits that the request
            # itself requires.
            required = set(question.root_required).difference(alternative.request.root_required)
            required = required.union(*(group.required for group in question.groups))
            barred = tuple(uuid for uuid, demands in self.demanding if not demands <= required)
            if barred:
                not_member_of = (*question.root_not_member_of, *barred)
                question = msgspec.structs.replace(question, root_not_member_of=not_member_of)
        if self.closed:
            not_cells = tuple(dict.fromkeys((*question.not_cells, *self.closed)))
            question = msgspec.structs.replace(question, not_cells=not_cells)
        if question is alternative.question:
            return alternative
        return replace(alternative, question=question, notes=notes)


def prefilters(
    aggregates: Iterable[Aggregate], options: RequestOptions, cells: Iterable[RegisteredCell] = ()
) -> Prefilters:
    """Return the limits that operators set for all requests: by aggregates' metadata, disabled cells,
    settings."""
    tenants: dict[str, list[str]] = {}
    demanding = []
    for aggregate in sorted(aggregates, key=lambda item: item.id):
        projects: dict[str, None] = {}
        demands = set()
        for key, value in aggregate.metadata.items():
            if key.startswith(TENANT):
                projects |= dict.fromkeys(listed(aggregate, key))
            elif key.startswith("trait:") and value == "required":
                demands.add(key.removeprefix("trait:"))
        for project in projects:
            tenants.setdefault(project, []).append(aggregate.id)
        if demands:
            demanding.append((aggregate.id, frozenset(demands)))
    return Prefilters(
        {project: tuple(some) for project, some in tenants.items()} if options.tenant_aggregates else None,
        options.tenant_aggregates_required,
        tuple(demanding) if options.isolate_aggregates else (),
        tuple(sorted(cell.name for cell in cells if not cell.enabled)),
    )
