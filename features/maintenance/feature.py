"""Declares the feature maintenance."""

from bus.feature import Feature, PageEntry
from features.maintenance.settings import MaintenanceSettings

FEATURE = Feature(
    name="maintenance",
    says="empties hosts for maintenance, and evacuates dead hosts",
    adds=("messages", "scheduler", "explaining", "problems", "pages"),
    commands={"host maintenance": "commands"},
    exit_codes={
        "host maintenance create": "with `--dry-run`: a host would be late",
        "host maintenance show": "a host is late, or an evacuation is held or could not be fenced",
    },
    command_groups={
        "host maintenance": "Maintenance windows, for which hosts are drained in time, and automatic"
        " evacuations of dead hosts (features/maintenance/README.md)."
    },
    pages={"/maintenance": PageEntry("Maintenance", "Hosts")},
    meters=(
        ("features.maintenance.controller", "scheduler"),
        ("features.maintenance.evacuations", "scheduler"),
    ),
    settings=MaintenanceSettings,
    needs=("moves",),
)
