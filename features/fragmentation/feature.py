"""Declares the feature fragmentation."""

from bus.feature import Feature

FEATURE = Feature(
    name="fragmentation",
    says="places instances so that what remains free is of most use for the usual requests",
    adds=("filters",),
)
