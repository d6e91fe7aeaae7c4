"""Settings → what the scheduler reads requests by."""

import re
from collections.abc import Mapping

from berth.settings import Settings
from scheduler_worker import NUMA_POLICIES, PciAlias, RequestOptions

_WORD = re.compile(r"[A-Za-z0-9_-]{1,48}")
_NAME = re.compile(r"[A-Z0-9_]{1,255}")
_READ_UNSCOPED = frozenset(
    {
        "compute_capabilities",
        "ComputeCapabilitiesFilter",
        "aggregate_instance_extra_specs",
        "AggregateInstanceExtraSpecsFilter",
    }
)


def request_options(settings: Settings) -> RequestOptions:
    """Return the options of checked settings; `pci_aliases` reports errors."""
    said, rules = settings.requests, settings.scheduler.filters
    return RequestOptions(
        pci_aliases=pci_aliases(said.pci_aliases),
        large_pages=said.large_pages,
        image_metadata_traits=said.image_metadata_traits,
        image_type_traits=said.image_type_traits,
        max_wait=said.max_wait,
        unscoped=not rules or any(name.rpartition(".")[2] in _READ_UNSCOPED for name in rules),
        tenant_aggregates=said.tenant_aggregates != "off",
        tenant_aggregates_required=said.tenant_aggregates == "required",
        isolate_aggregates=said.isolate_aggregates,
    )


def pci_aliases(said: Mapping[str, str]) -> dict[str, PciAlias]:
    """Parse aliases such as `gpu = "CUSTOM_GPU CUSTOM_HBM numa=required"`: a class, traits, and the NUMA
    affinity.
    """
    return {name: _alias(name, value) for name, value in said.items()}


def _alias(name: str, value: str) -> PciAlias:
    if not _WORD.fullmatch(name):
        raise ValueError(f"{name!r} is no name: up to 48 letters, digits, _ and -")
    words = value.split()
    policies = [word.removeprefix("numa=") for word in words if word.startswith("numa=")]
    names = [word for word in words if not word.startswith("numa=")]
    strange = [repr(word) for word in names if not _NAME.fullmatch(word)]
    if not names or strange or len(policies) > 1:
        wrong = f"{strange[0]} of {name} is none" if strange else f"{name} has {value!r}"
        raise ValueError(f"takes a resource class, traits, and once numa=POLICY: {wrong}")
    for policy in policies:
        if policy not in NUMA_POLICIES:
            raise ValueError(f"{name}: numa={policy} is none of {', '.join(NUMA_POLICIES)}")
    return PciAlias(names[0], tuple(names[1:]), NUMA_POLICIES[policies[0]] if policies else "legacy")
