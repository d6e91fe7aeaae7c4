"""The weighers of the feature. An attribute that a host does not report counts as 0."""

from collections.abc import Mapping

from scheduler_worker.core.extension import HostFacts, Number, View, Weigher
from scheduler_worker.extension import Alternative

UNAVAILABLE = -10_000.0  # the value of a missing metric


def hypervisor_version() -> Weigher:
    """Prefer hosts with a newer version of the hypervisor."""
    return Weigher("hypervisor_version", lambda view, alternative: view.fact("hypervisor_version", 0.0), 1.0)


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

    return Weigher(
        "image_properties", value, 0.0, key="image_props_weight_multiplier", reads=("image",), is_slow=True
    )


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
