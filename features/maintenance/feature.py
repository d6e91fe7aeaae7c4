"""Declares the feature maintenance."""

from bus.feature import Feature

FEATURE = Feature(
    name="maintenance",
    says="empties hosts for maintenance, and evacuates dead hosts",
    needs=("moves", "planning"),
)
