"""Declares the feature topology."""

from bus.feature import Feature

FEATURE = Feature(
    name="topology",
    says="chooses the hosts of all instances of a request together, with constraints of their own, and roles",
    adds=("messages", "scheduler", "boot_options"),
    needs=("groups",),
)
