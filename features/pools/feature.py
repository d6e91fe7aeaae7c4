"""Declares the feature pools."""

from bus.feature import Feature

FEATURE = Feature(
    name="pools",
    says="creates pools of storage, addresses and other resources that hosts share",
    needs=("placement_additions",),
    commands={"resource pool": "commands"},
    command_groups={"resource pool": "Pools: storage, addresses and other resources that hosts share."},
)
