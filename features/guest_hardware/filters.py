"""The weighers of the feature: for devices, and for the candidates of one host."""

from collections.abc import Mapping, Sequence
from typing import Any

from bus.queries import Candidate
from features.guest_hardware.settings import GuestHardwareSettings
from scheduler_worker.core.extension import MoreRules, Number, RulesPart, View, Weigher
from scheduler_worker.extension import Alternative

DEVICES = ("PCI_DEVICE", "PGPU", "VGPU", "SRIOV_NET_VF")


def pci(*, classes: Sequence[str] = DEVICES) -> Weigher:
    """Prefer hosts with fewer free devices, so that hosts with many remain for requests that need many."""
    every = tuple(classes)

    def value(view: View, alternative: Alternative) -> Number:
        return -sum((view.free(resource_class) for resource_class in every), 0.0)

    return Weigher("pci", value, 1.0)


def devices(*, unused: float = 1.0, left: float = 0.5) -> Weigher:
    """Choose among the candidates of one host: fill used NUMA cells, GPUs and network ports first.

    A candidate loses `unused` for each unused provider that it takes, and `left` times the fraction that
    stays free on each provider. A negative multiplier spreads. Hosts are not compared.
    """

    def of_candidate(candidate: Candidate) -> float:
        return fullness(candidate, unused, left)

    return Weigher("devices", lambda view, alternative: 0.0, 1.0, of_candidate=of_candidate)


def fullness(candidate: Candidate, unused: float, left: float) -> float:
    """Return the score of a candidate, lower if it takes unused providers or leaves much of them free."""
    value = 0.0
    capacities, free_amounts = candidate.capacity_by_provider, candidate.free_by_provider
    for provider, asked in candidate.allocations.items():
        if provider not in capacities:
            continue
        capacity, free = capacities[provider], free_amounts[provider]
        is_unused, share = True, 0.0
        for name, amount in asked.items():
            has, total = free[name], capacity[name]
            if has != total:
                is_unused = False
            share += (has - amount) / (total or 1)
        value -= left * share / len(asked) + (unused if is_unused else 0.0)
    return value


def options(settings: GuestHardwareSettings) -> Mapping[str, Mapping[str, Any]]:
    """Return the options of `pci`: it also counts the resource classes of PCI aliases."""
    aliases = [text.split()[0] for text in settings.pci_aliases.values() if text.split()]
    return {"pci": {"classes": list(dict.fromkeys((*DEVICES, *aliases)))}} if aliases else {}


PART = RulesPart(
    weighers=(
        MoreRules(made=(pci,), before="build_failure", called={"PCIWeigher": ("pci",)}),
        MoreRules(made=(devices,), before="image_cached"),
    ),
    options=options,
)
