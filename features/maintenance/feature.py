"""Declares the feature maintenance."""

from bus.feature import Feature
from features.maintenance.settings import MaintenanceSettings

FEATURE = Feature(
    name="maintenance",
    says="empties hosts for maintenance, and evacuates dead hosts",
    commands={"Hosts": {"maintenance": "commands"}},
    command_groups={
        "maintenance": "Maintenance windows, for which hosts are drained in time, and automatic"
        " evacuations of dead hosts (docs/maintenance.md)."
    },
    pages={"/maintenance": "Maintenance"},
    meters=(
        ("features.maintenance.controller", "scheduler"),
        ("features.maintenance.evacuations", "scheduler"),
    ),
    settings=MaintenanceSettings,
    needs=("moves", "reservations"),
)
