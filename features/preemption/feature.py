"""Declares the feature preemption."""

from bus.feature import Feature

FEATURE = Feature(
    name="preemption", says="removes instances of lower priority for a build of higher priority"
)
