"""Declares the feature planning."""

from bus.feature import Feature

FEATURE = Feature(
    name="planning",
    says="plans moves that make room, balance hosts or empty them",
    needs=("moves", "what_if"),
)
