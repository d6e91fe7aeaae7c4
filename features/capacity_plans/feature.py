"""Declares the feature capacity_plans."""

from bus.feature import Feature

FEATURE = Feature(
    name="capacity_plans",
    says="computes how many instances of a mix of flavors would fit, also on other hosts",
    pages={"/what-if/capacity": "Capacity"},
)
