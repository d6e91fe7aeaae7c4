"""Declares the feature policies."""

from bus.feature import Feature

FEATURE = Feature(
    name="policies",
    says="tries other filters, weighers and limits on recorded requests",
    needs=("what_if",),
    commands={"Inspect and check": {"rules test": "commands"}},
)
