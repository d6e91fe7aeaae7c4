"""Declares the feature adoption."""

from bus.feature import Feature

FEATURE = Feature(
    name="adoption",
    says="a cell takes over instances that existed before berth",
    commands={"Other systems": {"adopt": "commands"}},
)
