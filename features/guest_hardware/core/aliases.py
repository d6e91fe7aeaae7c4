"""PCI aliases: the names by which flavors request devices, and what each stands for."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

_WORD = re.compile(r"[A-Za-z0-9_-]{1,48}")
_NAME = re.compile(r"[A-Z0-9_]{1,255}")

NumaPolicy = Literal["legacy", "preferred", "required", "socket"]
NUMA_POLICIES: Mapping[str, NumaPolicy] = {policy: policy for policy in get_args(NumaPolicy)}


@dataclass(frozen=True)
class PciAlias:
    """The devices that a flavor requests by an alias: their resource class, traits and NUMA affinity."""

    resource_class: str
    traits: tuple[str, ...] = ()
    numa_policy: NumaPolicy = "legacy"  # `required`: on a NUMA cell of the guest's processors


def pci_aliases(texts: Mapping[str, str]) -> dict[str, PciAlias]:
    """Return PCI aliases by name, from settings like `gpu = "CUSTOM_GPU CUSTOM_HBM numa=required"`."""
    return {name: _alias(name, value) for name, value in texts.items()}


def _alias(name: str, value: str) -> PciAlias:
    if not _WORD.fullmatch(name):
        raise ValueError(f"{name!r} is no name: up to 48 letters, digits, _ and -")
    parts = value.split()
    policies = [part.removeprefix("numa=") for part in parts if part.startswith("numa=")]
    names = [part for part in parts if not part.startswith("numa=")]
    strange = [repr(part) for part in names if not _NAME.fullmatch(part)]
    if not names or strange or len(policies) > 1:
        wrong = f"{name} has {strange[0] if strange else repr(value)}"
        raise ValueError(f"takes a resource class, traits, and once numa=POLICY: {wrong}")
    for policy in policies:
        if policy not in NUMA_POLICIES:
            raise ValueError(f"{name}: numa={policy} is none of {', '.join(NUMA_POLICIES)}")
    return PciAlias(names[0], tuple(names[1:]), NUMA_POLICIES[policies[0]] if policies else "legacy")
