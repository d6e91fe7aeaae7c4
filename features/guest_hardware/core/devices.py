"""Translates the PCI devices that a flavor requests by aliases into request groups."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from features.guest_hardware.core.aliases import NUMA_POLICIES, NumaPolicy, PciAlias
from features.guest_hardware.core.guest_specs import GuestSpecs
from scheduler_worker.core.extension import QuestionDraft, Unreadable, nearest

MAX_DEVICES = 64
_ALIAS = re.compile(r"\s*([A-Za-z0-9_-]{1,48})\s*(?::\s*([0-9]{1,3})\s*)?")


@dataclass(frozen=True)
class Device:
    """A PCI device that a flavor requests."""

    suffix: str  # of its request group
    alias: PciAlias
    numa_policy: NumaPolicy
    at: str  # the extra spec that requests it


def devices_of(specs: GuestSpecs, aliases: Mapping[str, PciAlias]) -> Sequence[Device]:
    """Return the PCI devices that a flavor requests by aliases."""
    spec = specs.of_flavor("pci_passthrough:alias")
    policy = specs.one_of("hw:pci_numa_affinity_policy", *NUMA_POLICIES)
    if spec is None:
        return ()
    devices = list[Device]()
    for part in spec.value.split(","):
        match = _ALIAS.fullmatch(part)
        if match is None:
            raise Unreadable(f"{spec.at}: {part.strip()!r} is no alias with a number, as in a1:2,b:1")
        name, count = match[1], int(match[2] or 1)
        alias = aliases.get(name)
        if alias is None:
            alike = nearest(name, aliases)
            raise Unreadable(f"{spec.at}: there is no alias {name!r} (the setting pci_aliases){alike}")
        if not count or len(devices) + count > MAX_DEVICES:
            raise Unreadable(f"{spec.at}: {count} of {name!r}: from 1 to {MAX_DEVICES} devices in all")
        numa_policy = NUMA_POLICIES.get(policy, alias.numa_policy)
        first = len(devices)
        devices += [
            Device(f"_pci{number}_{name}", alias, numa_policy, spec.at)
            for number in range(first, first + count)
        ]
    return devices


def add_devices(draft: QuestionDraft, devices: Sequence[Device], cells: int, *, near: bool) -> None:
    """Add a request group for each PCI device. With NUMA affinity, device n is near NUMA cell n of the
    guest's `cells`. With `near`, the NUMA policy "preferred" counts as "required".
    """
    for number, device in enumerate(devices):
        policy = device.numa_policy
        draft.ask(device.suffix, device.alias.resource_class, 1)
        draft.groups[device.suffix].required |= dict.fromkeys(device.alias.traits, device.at)
        if cells and (policy == "required" or (policy == "preferred" and near)):
            draft.same.append((f"_numa{number % cells}", device.suffix))
        elif policy == "socket":
            draft.root_required["COMPUTE_SOCKET_PCI_NUMA_AFFINITY"] = device.at
