"""Declares the feature placement_additions."""

from bus.feature import Feature

FEATURE = Feature(
    name="placement_additions",
    says="loads many providers at once, and serves changes, aggregates and explanations over HTTP",
    adds=("messages", "placement", "http"),
)
