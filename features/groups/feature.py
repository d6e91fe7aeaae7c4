"""Declares the feature groups."""

from bus.feature import Feature

FEATURE = Feature(
    name="groups", says="server groups: policies that place instances on the same host or on different hosts"
)
