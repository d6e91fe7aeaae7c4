"""The built-in weighers. A function with the name of the weigher makes it; the arguments are its options.

A negative multiplier reverses a preference. An attribute that a host does not report counts as 0.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from bus.queries import Candidate
from scheduler_worker.core.rule import Alternative, HostFacts, Number, View, Weigher

DEVICES = ("PCI_DEVICE", "PGPU", "VGPU", "SRIOV_NET_VF")
UNAVAILABLE = -10_000.0  # the value of a missing metric
FEW_FAILURES = 3.0
# Other accepted names (of Nova, or former ones) → weighers. A module path before a class name is ignored.
WEIGHERS_CALLED: Mapping[str, tuple[str, ...]] = {
    "RAMWeigher": ("ram",),
    "CPUWeigher": ("cpu",),
    "DiskWeigher": ("disk",),
    "IoOpsWeigher": ("io_ops",),
    "HypervisorVersionWeigher": ("hypervisor_version",),
    "PCIWeigher": ("pci",),
    "BuildFailureWeigher": ("build_failure",),
    "NumInstancesWeigher": ("num_instances",),
    "ImagePropertiesWeigher": ("image_properties",),
    "MetricsWeigher": ("metrics",),
    "free_ram": ("ram",),
    "free_vcpu": ("cpu",),
    "builds_in_flight": ("io_ops",),
}
# Weighers of Nova that berth does not need → why.
WEIGHERS_OF_OTHERS: Mapping[str, str] = {
    "CrossCellWeigher": "it is about moves between cells; a build may go to any cell, and none is preferred"
}


def _free(resource_class: str) -> Callable[[View, Alternative], Number]:
    return lambda view, alternative: view.free(resource_class)


def ram() -> Weigher:
    """Prefer hosts with more free MEMORY_MB, which spreads builds; a negative multiplier packs them."""
    return Weigher("ram", _free("MEMORY_MB"), 1.0, lowest=0.0)


def cpu() -> Weigher:
    """Prefer hosts with more free VCPU."""
    return Weigher("cpu", _free("VCPU"), 1.0, lowest=0.0)


def disk() -> Weigher:
    """Prefer hosts with more free DISK_GB."""
    return Weigher("disk", _free("DISK_GB"), 1.0, lowest=0.0)


def io_ops() -> Weigher:
    """Prefer hosts with fewer builds in progress."""
    return Weigher("io_ops", lambda view, alternative: view.fact("building"), -1.0, lowest=0.0)


def load() -> Weigher:
    """Prefer hosts that report a lower load, less strongly if all loads are within 1 of each other."""
    return Weigher("load", lambda view, alternative: view.fact("load", 0.0), -1.0, least_span=1.0)


def hypervisor_version() -> Weigher:
    """Prefer hosts with a newer version of the hypervisor."""
    return Weigher("hypervisor_version", lambda view, alternative: view.fact("hypervisor_version", 0.0), 1.0)


def pci(*, classes: Sequence[str] = DEVICES) -> Weigher:
    """Prefer hosts with fewer free devices, so that hosts with many remain for requests that need many."""
    every = tuple(classes)

    def value(view: View, alternative: Alternative) -> Number:
        return -sum((view.free(resource_class) for resource_class in every), 0.0)

    return Weigher("pci", value, 1.0)


def build_failure() -> Weigher:
    """Prefer hosts with fewer recent failed builds; one failure costs 2 points of the score, three cost 6."""
    return Weigher(
        "build_failure", lambda view, alternative: -view.fact("failures"), 6.0, least_span=FEW_FAILURES
    )


def num_instances() -> Weigher:
    """Prefer hosts with more instances; a negative multiplier prefers the emptiest hosts."""
    return Weigher(
        "num_instances", lambda view, alternative: view.fact("instances", 0.0) + view.fact("sent"), 0.0
    )


def image_properties(*, image_props_weight_setting: Mapping[str, float] | None = None) -> Weigher:
    """Prefer hosts that run instances whose images share properties with the requested image.

    The option `image_props_weight_setting` gives properties their weights; without the option, all count
    equally. Each fitting host costs a few microseconds; a multiplier of 0 disables the weigher, whatever
    multipliers aggregates set.
    """
    ratios = dict(image_props_weight_setting or {})

    def value(view: View, alternative: Alternative) -> Number:
        wanted = [
            (f"{name}={text}", ratio)
            for name, text in alternative.image_properties.items()
            if (ratio := ratios.get(name, 0.0) if ratios else 1.0)
        ]

        def of(host: HostFacts) -> float:
            on_host = host.state.image_properties if host.state is not None else {}
            return sum(ratio * on_host.get(text, 0) for text, ratio in wanted)

        return view.each(of) if wanted else 0.0

    return Weigher("image_properties", value, 0.0, key="image_props_weight_multiplier", reads=("image",))


def metrics(
    *,
    weight_setting: Mapping[str, float] | None = None,
    required: bool = True,
    weight_of_unavailable: float = UNAVAILABLE,
) -> Weigher:
    """Prefer hosts by reported metrics times their ratios: `weight_setting = {temperature = -1.0}`.

    If `required`, the filter `metrics` is enabled as well, and it rejects a host that lacks one of the
    metrics; if not, such a host gets the value `weight_of_unavailable`.
    """
    ratios = tuple((weight_setting or {}).items())

    def value(view: View, alternative: Alternative) -> Number:
        weights = sum(view.metric(name) * ratio for name, ratio in ratios)
        return view.where(view.known(weights), weights, weight_of_unavailable) if ratios else 0.0

    return Weigher("metrics", value, 1.0)


def preferred_traits() -> Weigher:
    """Prefer hosts with the request's preferred traits; this counts more than ram, cpu and disk."""

    def value(view: View, alternative: Alternative) -> Number:
        return sum(view.has(trait) * by for trait, by in alternative.preferred.items())

    return Weigher("preferred_traits", value, 4.0, reads=("preferred",))


def preferred_resources() -> Weigher:
    """Prefer hosts with the request's preferred amounts free, by weight; half of an amount counts half."""

    def value(view: View, alternative: Alternative) -> Number:
        return sum(
            _share(view.free(name) / amount) * by
            for name, (amount, by) in alternative.preferred_amounts.items()
        )

    return Weigher("preferred_resources", value, 4.0, reads=("preferred_amounts",))


def _share(amount: Number) -> Number:
    return min(amount, 1.0) if isinstance(amount, float) else np.minimum(amount, 1.0)


def devices(*, unused: float = 1.0, left: float = 0.5) -> Weigher:
    """Choose among the candidates of one host: fill used NUMA cells, GPUs and network ports first.

    A candidate loses `unused` for each unused provider that it takes, and `left` times the fraction that
    stays free on each provider. A negative multiplier spreads. Hosts are not compared.
    """

    def of_candidate(candidate: Candidate) -> float:
        return fullness(candidate, unused, left)

    return Weigher("devices", lambda view, alternative: 0.0, 1.0, of_candidate=of_candidate)


def image_cached() -> Weigher:
    """Prefer hosts that have cached the image, to save the download if hosts are about equal."""

    def value(view: View, alternative: Alternative) -> Number:
        return view.cached(alternative.request.image.name) if alternative.request.image is not None else 0.0

    return Weigher("image_cached", value, 0.25, reads=("image",))


WEIGHERS: Mapping[str, Callable[..., Weigher]] = {
    made.__name__: made
    for made in (
        ram,
        cpu,
        disk,
        io_ops,
        load,
        hypervisor_version,
        pci,
        build_failure,
        num_instances,
        image_properties,
        metrics,
        preferred_traits,
        preferred_resources,
        devices,
        image_cached,
    )
}


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
