"""Declares the feature topology."""

from bus.feature import Feature

FEATURE = Feature(
    name="topology",
    says="packs the members of a server group into a domain, or spreads them over domains",
    needs=("groups",),
)
