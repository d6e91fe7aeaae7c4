"""Declares the feature nova_filters."""

from bus.feature import Feature

FEATURE = Feature(
    name="nova_filters",
    says="filters and a weigher of Nova for extra specs, images, aggregates' metadata and queries over hosts",
)
