"""The properties of flavors and images with which berth cannot decide about a request of Nova.

One table for both: an image has the properties of a flavor with `hw_` instead of `hw:`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

NO_NUMA = "its NUMA topology: Nova keeps NUMA cells in its compute nodes, not in Placement"
NO_PMEM = (
    "its persistent memory (hw:pmem): Nova gives such a guest a NUMA cell, and keeps NUMA cells in its"
    " compute nodes, not in Placement"
)
NO_PCI = "its PCI devices: Nova does not report them to Placement"


@dataclass(frozen=True)
class UnjudgedProperty:
    """A property with which berth cannot decide. With a last `*`, every property that begins so."""

    extra_spec: str
    why: str
    image: str = ""  # name of the same property of images; empty: images do not have it
    values: tuple[str, ...] = ()  # other values have no effect; empty: every value has one

    def applies(self, name: str, key: str, value: str) -> bool:
        """Return whether a property has this name (of flavors or of images), and a value with an effect."""
        is_named = key.startswith(name[:-1]) if name.endswith("*") else key == name
        return bool(name) and is_named and (not self.values or value in self.values)


_POLICIES = ("dedicated", "mixed")
PROPERTIES = (
    UnjudgedProperty("hw:numa_*", NO_NUMA, "hw_numa_*"),
    UnjudgedProperty("hw:cpu_policy", NO_NUMA, "hw_cpu_policy", _POLICIES),
    UnjudgedProperty("hw:cpu_dedicated_mask", NO_NUMA),
    UnjudgedProperty("hw:mem_page_size", NO_NUMA, "hw_mem_page_size"),
    UnjudgedProperty("hw:pmem", NO_PMEM),
)
IMAGE_PROPERTIES = tuple(each.image for each in PROPERTIES if each.image)


def unjudged_by_flavor(extra_specs: Mapping[str, str], *, has_pci: bool) -> str:
    """Return why berth cannot place requests with a flavor of these extra specs (features/nova/README.md); ""
    if it can. `has_pci`: whether Nova reports PCI devices to Placement.
    """
    for known in PROPERTIES:
        if any(known.applies(known.extra_spec, key, value) for key, value in extra_specs.items()):
            return known.why
    for key, value in extra_specs.items():
        resource = key.partition(":")[2] if key.startswith("resources") else ""
        if resource == "PCPU" and value != "0":
            return NO_NUMA
        if key == "pci_passthrough:alias" and value and not has_pci:
            return NO_PCI
    return ""


def unjudged_by_image(properties: Mapping[str, str]) -> str:
    """Return why berth cannot decide about requests with an image, or "" if it can."""
    for known in PROPERTIES:
        if any(known.applies(known.image, key, value) for key, value in properties.items()):
            return known.why
    return ""
