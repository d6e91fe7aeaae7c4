"""Reads extra specs and image properties by an operator's options, and reports unknown keys."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from heapq import nlargest
from itertools import takewhile
from typing import Literal, get_args

from bus.requests import Flavor, Image
from bus.vocabulary import MAX_INT

MAX_NOTES = 20  # sentences about one list of a request
_LONGEST = 2000  # characters of a sentence: a value that is quoted may be large
_LIKE = 0.65  # of 1: how much a slip resembles what was meant
_COMPARED = 200  # names: comparing one takes up to 50 microseconds
_NUMBER = re.compile(r"[0-9]{1,10}")
_YES, _NO = frozenset({"true", "yes", "on", "1"}), frozenset({"false", "no", "off", "0"})
# The hypervisor's business, which gets them with the order to build.
_OF_THE_HYPERVISOR = """
    hide_hypervisor_id hw:boot_menu hw:cpu_cores hw:cpu_sockets hw:cpu_threads hw:cpu_max_cores
    hw:cpu_max_sockets hw:cpu_max_threads hw:cpu_realtime hw:cpu_realtime_mask hw:hide_hypervisor_id
    hw:input_bus hw:locked_memory hw:maxphysaddr_bits hw:pointer_model hw:redirected_usb_ports
    hw:rescue_bus hw:serial_port_count hw:usb_model hw:vif_multiqueue_enabled hw:watchdog_action
""".split()  # noqa: SIM905 - shorter than a list
# Scopes of other readers: Ironic, hypervisors, filters.
_OTHER_READERS = ("quota", "os", "hw_rng", "hw_video", "powervm", "vmware")
_SILENT_SCOPES = (*_OTHER_READERS, "capabilities", "aggregate_instance_extra_specs")
_SHAPED = re.compile(r"(resources|trait)[A-Za-z0-9_-]*:.*|same_subtree[A-Za-z0-9_-]*|hw:numa_(cpus|mem)\.\d+")
NumaPolicy = Literal["legacy", "preferred", "required", "socket"]
NUMA_POLICIES: Mapping[str, NumaPolicy] = {policy: policy for policy in get_args(NumaPolicy)}


class Unreadable(ValueError):
    """The error that a request contradicts itself or has no meaning; the text names the field."""

    def __init__(self, why: str) -> None:
        super().__init__(why if len(why) <= _LONGEST else f"{why[:_LONGEST]}…")


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a suggestion such as "did you mean …?", or an empty string if no known name is similar."""

    def alike(other: str) -> int:
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(name, other, strict=False)))

    like = get_close_matches(name, nlargest(_COMPARED, known, key=alike), n=1, cutoff=_LIKE)
    return f"; did you mean {like[0]}?" if like else ""


@dataclass(frozen=True)
class SpecValue:
    """The value of an extra spec or image property, with the name of its field for messages."""

    value: str
    at: str

    def one_of(self, *allowed: str) -> str:
        value = self.value.strip().lower()
        if value not in allowed:
            raise Unreadable(f"{self.at}: {self.value!r} is none of {', '.join(allowed)}")
        return value

    def yes(self) -> bool:
        value = self.value.strip().lower()
        if value not in _YES | _NO:
            raise Unreadable(f"{self.at}: {self.value!r} is neither true nor false")
        return value in _YES

    def whole(self, least: int = 0, most: int = MAX_INT) -> int:
        if not _NUMBER.fullmatch(self.value) or not least <= int(self.value) <= most:
            raise Unreadable(f"{self.at}: {self.value!r} is no whole number from {least} to {most}")
        return int(self.value)


class GuestSpecs:
    """Properties of a guest from the flavor (`hw:cpu_policy`) and from the image (`hw_cpu_policy`)."""

    def __init__(self, flavor: Flavor, image: Image | None, where: str) -> None:
        self.flavor = flavor
        self.where = where  # the field of the request that the flavor stands in
        self._properties = image.properties if image is not None else {}

    def of_flavor(self, key: str) -> SpecValue | None:
        value = self.flavor.extra_specs.get(key)
        return None if value is None else SpecValue(value, f"{self.where}.extra_specs[{key!r}]")

    def of_image(self, name: str) -> SpecValue | None:
        value = self._properties.get(name)
        return None if value is None else SpecValue(value, f"image.properties[{name!r}]")

    def get(self, key: str) -> SpecValue | None:
        """Return a property of the flavor or the image. Different values in both are an error."""
        flavor, image = self.of_flavor(key), self.of_image(key.replace(":", "_", 1))
        if flavor is not None and image is not None and flavor.value.lower() != image.value.lower():
            raise Unreadable(f"{flavor.at}: {flavor.value!r}, and {image.at}: {image.value!r}")
        return flavor or image

    def one_of(self, key: str, *allowed: str) -> str:
        """Return the value of a property if it is an allowed one, or "" if the property is missing."""
        spec = self.get(key)
        return "" if spec is None else spec.one_of(*allowed)

    def numbered(self, prefix: str) -> Iterator[tuple[int, SpecValue]]:
        """Yield the values of numbered keys such as `hw:numa_cpus.0`."""
        for key, value in self.flavor.extra_specs.items():
            number = key.removeprefix(prefix)
            if number != key and number.isdecimal():
                yield int(number), SpecValue(value, f"{self.where}.extra_specs[{key!r}]")


def unknown(flavor: Flavor, where: str, read: Collection[str], unscoped_are_read: bool) -> Iterator[str]:
    """Yield a sentence for each extra spec of a flavor that berth does not read."""
    if accelerated := next((key for key in flavor.extra_specs if key.partition(":")[0] == "accel"), None):
        raise Unreadable(
            f"{where}.extra_specs[{accelerated!r}]: there are no device profiles here: ask for the device"
            " by its class, as resources1:FPGA=1"
        )
    for key in flavor.extra_specs:
        if key in read or key in _OF_THE_HYPERVISOR or _SHAPED.fullmatch(key):
            continue
        scope, colon, name = key.partition(":")
        if colon and scope in _SILENT_SCOPES:
            continue
        alike = nearest(key, [*read, *_OF_THE_HYPERVISOR, f"resources:{name}", f"trait:{name}"])
        if colon or alike:
            yield f"{where}.extra_specs: {key}: not known here{alike}"
        elif not unscoped_are_read:
            yield f"{where}.extra_specs: {key}: has no scope, and no enabled rule reads it"


@dataclass(frozen=True)
class PciAlias:
    """The devices that a flavor requests by a name: resource class, traits and NUMA affinity."""

    resource_class: str
    traits: tuple[str, ...] = ()
    numa_policy: NumaPolicy = "legacy"  # required: below the NUMA cell that the guest gets


@dataclass(frozen=True, eq=False)  # known by what it is, so that what was read by it can be kept
class RequestOptions:
    """An operator's options for the interpretation of requests. The defaults are Nova's."""

    pci_aliases: Mapping[str, PciAlias] = field(default_factory=dict)
    large_pages: tuple[str, ...] = ("1GB", "2MB")  # what hw:mem_page_size=large tries, in this order
    # hw_disk_bus and similar properties become required traits of the host
    image_metadata_traits: bool = False
    image_type_traits: bool = False  # so is the image's disk_format
    max_wait: float = 7 * 86400.0  # seconds a request may wait for room
    unscoped: bool = False  # some rule reads extra specs without a scope: they are not called unknown
    tenant_aggregates: bool = False  # a project with aggregates is restricted to them
    tenant_aggregates_required: bool = False  # and one without has no hosts
    isolate_aggregates: bool = False  # aggregates with a required trait accept only requests that require it
