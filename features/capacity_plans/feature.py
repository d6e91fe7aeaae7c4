"""Declares the feature capacity_plans."""

from bus.feature import Feature, PageEntry

FEATURE = Feature(
    name="capacity_plans",
    says="computes how many instances of a mix of flavors would fit, also on other hosts",
    adds=(
        "pages",
        "with_quotas.added_to_plans",
        "with_reservations.added_to_plans",
        "with_what_if.what_if_part",
    ),
    defines=("added_to_plans",),
    pages={"/what-if/capacity": PageEntry("Capacity plans", "Requests")},
)
