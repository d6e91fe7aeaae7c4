"""Declares the feature headroom."""

from bus.feature import Feature

FEATURE = Feature(
    name="headroom",
    says="keeps capacity for the failure of hosts",
    needs=("reservations", "groups"),
    meters=(("features.headroom.controller", "placement"),),
)
