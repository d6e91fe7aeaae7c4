"""Declares the feature headroom."""

from bus.feature import Feature

FEATURE = Feature(
    name="headroom",
    says="keeps capacity for the failure of hosts",
    needs=("reservations",),
    commands={"Builds": {"headroom": "commands"}},
    command_groups={
        "headroom": "Capacity that is kept for the loss of any one host or rack"
        " (features/headroom/README.md)."
    },
    pages={"/headroom": "Headroom"},
    meters=(("features.headroom.controller", "placement"),),
)
