"""Declares the feature guest_hardware."""

from bus.feature import Feature
from features.guest_hardware.settings import GuestHardwareSettings

FEATURE = Feature(
    name="guest_hardware",
    says="places guests by what flavors and images require of hardware: NUMA cells, pages, devices, traits",
    adds=("filters", "request_reader"),
    settings=GuestHardwareSettings,
)
