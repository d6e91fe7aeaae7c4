"""Declares the feature adoption."""

from bus.feature import Feature

FEATURE = Feature(
    name="adoption",
    says="a cell takes over instances that existed before berth",
    adds=("messages", "conductor", "healing"),
    commands={"instance adopt": "commands"},
    exit_codes={"instance adopt": "some could not be adopted, and are listed"},
)
