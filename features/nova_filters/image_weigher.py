"""The weigher for the image of a request."""

from collections.abc import Mapping

from scheduler_worker.extension import Alternative, HostFacts, Number, View, Weigher


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
