"""The settings of the feature guest_hardware."""

from msgspec import field

from bus.feature import Refuse, SettingsGroup
from features.guest_hardware.core.aliases import pci_aliases


class GuestHardwareSettings(SettingsGroup, frozen=True, kw_only=True):
    """The reading of what flavors and images require of hosts (features/guest_hardware/README.md)."""

    # PCI aliases of flavors by name: resource class, traits, and numa=legacy, preferred, required or socket
    pci_aliases: dict[str, str] = field(default_factory=dict)
    # what of an image becomes required traits of the host: type (its disk_format), metadata (properties such
    # as hw_disk_bus), or both
    image_traits: tuple[str, ...] = ()

    def check(self, refuse: Refuse) -> None:
        try:
            pci_aliases(self.pci_aliases)
        except ValueError as problem:
            refuse("pci_aliases", str(problem))
        if unknown := {*self.image_traits} - {"type", "metadata"}:
            refuse("image_traits", f"{min(unknown)!r} is neither type nor metadata")
