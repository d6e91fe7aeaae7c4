"""Declares the feature policies."""

from bus.feature import Feature

FEATURE = Feature(
    name="policies",
    says="tries other filters and weighers on recorded requests",
    needs=("what_if", "preemption"),
)
