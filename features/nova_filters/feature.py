"""Declares the feature nova_filters."""

from bus.feature import Feature

FEATURE = Feature(
    name="nova_filters",
    says="filters and weighers of Nova for extra specs, images, projects, metrics, metadata and hints",
    adds=("filters", "request_reader"),
)
