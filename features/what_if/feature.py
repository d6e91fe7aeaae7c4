"""Declares the feature what_if."""

from bus.feature import Feature

FEATURE = Feature(
    name="what_if",
    says="says where a request would be placed, without a claim",
    commands={"Builds": {"what-if": "commands"}},
    exit_codes={"what-if": "it does not fit"},
    pages={"/what-if": "What if"},
)
