"""Declares the feature history."""

from bus.feature import Feature

FEATURE = Feature(
    name="history",
    says="archives all changes of placement, and shows its state at a past time",
    adds=("messages", "placement"),
    commands={"audit at": "commands", "audit at capacity": "with_capacity_plans.commands"},
    exit_codes={"audit at capacity": "it did not fit"},
    command_groups={
        "audit at": "The state of placement at a past time, and decisions as of then"
        " (features/history/README.md):"
        " `berth audit at 2h show host-7`."
    },
)
