"""Declares the feature suggestions."""

from bus.feature import Feature

FEATURE = Feature(
    name="suggestions", adds=("scheduler",), says="changes of a request without a host that would make it fit"
)
