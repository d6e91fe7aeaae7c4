"""Declares the feature maintenance."""

from bus.feature import Feature
from features.maintenance.settings import MaintenanceSettings

FEATURE = Feature(
    name="maintenance",
    says="empties hosts for maintenance, and evacuates dead hosts",
    settings=MaintenanceSettings,
    needs=("moves", "planning"),
)
