"""Declares the feature headroom."""

from bus.feature import Feature, PageEntry

FEATURE = Feature(
    name="headroom",
    says="keeps capacity for the failure of hosts",
    adds=(
        "messages",
        "placement",
        "problems",
        "pages",
        "with_groups.placement",
        "with_preemption.placement",
        "with_what_if.what_if_part",
    ),
    needs=("reservations",),
    commands={"host headroom": "commands"},
    command_groups={
        "host headroom": "Capacity that is kept for the loss of any one host or rack"
        " (features/headroom/README.md)."
    },
    pages={"/headroom": PageEntry("Headroom", "Hosts")},
    meters=(("features.headroom.controller", "placement"),),
)
