"""Reads properties of a guest that the flavor, the image or both may have."""

from collections.abc import Iterator
from dataclasses import dataclass

from bus.requests import Flavor, Image
from scheduler_worker.core.extension import SpecValue, Unreadable

_YES, _NO = frozenset({"true", "yes", "on", "1"}), frozenset({"false", "no", "off", "0"})


@dataclass(frozen=True)
class GuestSpec(SpecValue):
    """The value of a property of a guest."""

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


class GuestSpecs:
    """Properties of a guest from the flavor (`hw:cpu_policy`) and from the image (`hw_cpu_policy`)."""

    def __init__(self, flavor: Flavor, image: Image | None, where: str) -> None:
        self.flavor = flavor
        self.where = where  # the request's field that contains the flavor, for error messages
        self._properties = image.properties if image is not None else {}

    def of_flavor(self, key: str) -> GuestSpec | None:
        value = self.flavor.extra_specs.get(key)
        return None if value is None else GuestSpec(value, f"{self.where}.extra_specs[{key!r}]")

    def of_image(self, name: str) -> GuestSpec | None:
        value = self._properties.get(name)
        return None if value is None else GuestSpec(value, f"image.properties[{name!r}]")

    def get(self, key: str) -> GuestSpec | None:
        """Return a property, by its key in the flavor, from the flavor or the image; None if neither has it.
        Raise Unreadable if they set different values.
        """
        flavor, image = self.of_flavor(key), self.of_image(key.replace(":", "_", 1))
        if flavor is not None and image is not None and flavor.value.lower() != image.value.lower():
            raise Unreadable(f"{flavor.at}: {flavor.value!r}, and {image.at}: {image.value!r}")
        return flavor or image

    def one_of(self, key: str, *allowed: str) -> str:
        """Return the value of a flavor or image property, or "" if it is missing. Raise Unreadable if it is
        not an allowed value."""
        spec = self.get(key)
        return "" if spec is None else spec.one_of(*allowed)

    def numbered(self, prefix: str) -> Iterator[tuple[int, GuestSpec]]:
        """Yield number and value of each extra spec of this prefix and a number, as in `hw:numa_cpus.0`."""
        for key, value in self.flavor.extra_specs.items():
            number = key.removeprefix(prefix)
            if number != key and number.isdecimal():
                yield int(number), GuestSpec(value, f"{self.where}.extra_specs[{key!r}]")
