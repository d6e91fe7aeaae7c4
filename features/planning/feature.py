"""Declares the feature planning."""

from bus.feature import Feature

FEATURE = Feature(
    name="planning",
    says="plans moves that make room, balance hosts or empty them",
    commands={"Moves": {"rebalance": "rebalance_command"}},
    needs=("moves", "what_if"),
)
