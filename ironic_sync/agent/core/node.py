"""Defines the fields of an Ironic node that the agent reads, and the patches that it writes."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from bus.messages import BuildOrdered, DestroyOrdered
from bus.requests import BuildSpec, Flavor

Json = dict[str, Any]

ATTEMPT = "berth_attempt"  # in instance_info
SEEN = "berth_seen"  # in extra


class SeenAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """The last ended attempt of a build on an Ironic node, with the cause if the attempt failed."""

    build: str
    attempt: int
    cause: str = ""


class MetalNode(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of an Ironic node that determine the agent's next step."""

    uuid: str
    provision_state: str | None = None
    instance_uuid: str | None = None
    instance_info: Json = {}
    extra: Json = {}
    maintenance: bool = False
    maintenance_reason: str | None = None
    resource_class: str | None = None
    last_error: str | None = None
    deploy_interface: str | None = None

    @property
    def seen(self) -> list[SeenAttempt]:
        """Return the ended attempts recorded on the node, the newest last; [] if the record is invalid."""
        try:
            return msgspec.convert(self.extra.get(SEEN, []), list[SeenAttempt])
        except msgspec.ValidationError:
            return []

    def last(self, build: str) -> SeenAttempt:
        """Return the last attempt of the build on this node; attempt 0 if there was none."""
        found = (attempt for attempt in reversed(self.seen) if attempt.build == build)
        return next(found, SeenAttempt(build=build, attempt=0))

    def attempt_of(self, build: str) -> int | None:
        """Return the number of the build's attempt that reserved the node.

        Return None if the node is not reserved for the build, and 0 if no attempt is in `instance_info`.
        """
        if self.instance_uuid != build:
            return None
        attempt = self.instance_info.get(ATTEMPT)
        return attempt if isinstance(attempt, int) else 0


FIELDS = MetalNode.__struct_fields__


def node_of(fields: Mapping[str, Any]) -> MetalNode:
    """Return a MetalNode made from a node's fields as Ironic's API returns them."""
    return msgspec.convert({name: fields[name] for name in FIELDS if fields.get(name) is not None}, MetalNode)


KEPT = 4  # builds that a node records
LONGEST_CAUSE = 300  # characters of a cause that are written to Ironic

# Image properties that are passed to Ironic. Without image_source the image's name is used.
OF_IMAGES = (
    "image_source", "image_checksum", "image_os_hash_algo", "image_os_hash_value", "image_disk_format",
    "image_container_format", "image_type", "image_url", "kernel", "ramdisk", "stage2", "ks_template",
    "boot_iso", "image_pull_secret",
)  # fmt: skip

# Alternatives that satisfy a deploy interface (each a set of names), and a text for people.
_WRITTEN = ((("image_source",),), "an image to write (image_source)")
_BOOTED = ((("boot_iso",), ("kernel", "ramdisk"), ("image_source",)),
           "an image to boot (boot_iso, or kernel and ramdisk, or image_source)")  # fmt: skip
_NEEDED = {
    "direct": _WRITTEN, "ansible": _WRITTEN, "bootc": _WRITTEN, "anaconda": _WRITTEN, "ramdisk": _BOOTED,
    "autodetect": _BOOTED,
}  # fmt: skip


def classes_of(flavor: Flavor) -> list[str]:
    """Return the custom resource classes that a flavor requests."""
    found = (re.fullmatch(r"resources[\w-]*:(CUSTOM_\w+)", name) for name in flavor.extra_specs)
    return sorted({match[1] for match in found if match})


def claim(node: MetalNode, order: BuildOrdered) -> list[Json]:
    """Return the JSON patch that reserves a node for a build; Ironic refuses it if the node is reserved."""
    info = {**instance_info(order.spec), ATTEMPT: order.attempt}
    return [
        {"op": "add", "path": "/instance_uuid", "value": order.build},
        {"op": "add", "path": "/instance_info", "value": info},
        *close(node, order, ""),
    ]


def release_node() -> list[Json]:
    """Return the JSON patch that removes an instance from its node."""
    return [{"op": "remove", "path": "/instance_uuid"}, {"op": "add", "path": "/instance_info", "value": {}}]


def close(node: MetalNode, order: BuildOrdered | DestroyOrdered, cause: str) -> list[Json]:
    """Return the JSON patch that records in the node's `extra` that the attempt of an order ended here, and
    why the attempt failed (`cause`; "": it did not).
    """
    other_attempts = [attempt for attempt in node.seen if attempt.build != order.build]
    this = SeenAttempt(build=order.build, attempt=order.attempt, cause=cause[:LONGEST_CAUSE])
    return [
        {"op": "add", "path": f"/extra/{SEEN}", "value": msgspec.to_builtins([*other_attempts, this][-KEPT:])}
    ]


def instance_info(spec: BuildSpec) -> Json:
    """Return an Ironic node's `instance_info` for this build, with the field names of Nova's driver."""
    flavor, image = spec.flavor, spec.image
    info: Json = {}
    if image is not None:
        info.update({name: image.properties[name] for name in OF_IMAGES if name in image.properties})
        if "boot_iso" not in info:
            info.setdefault("image_source", image.name)
    sizes = {
        "root_gb": flavor.disk_gb, "vcpus": flavor.vcpus, "memory_mb": flavor.memory_mb,
        "local_gb": flavor.disk_gb,
    }  # fmt: skip
    info.update({name: str(size) for name, size in sizes.items() if size})
    info["capabilities"] = {
        name.removeprefix("capabilities:"): value
        for name, value in flavor.extra_specs.items()
        if name.startswith("capabilities:")
    }
    info["traits"] = _traits(flavor, image.traits_required if image is not None else ())
    info["project_id"] = spec.project
    return info


def image_lacking(node: MetalNode, spec: BuildSpec) -> str:
    """Return a sentence about the image that the node's deploy interface needs and the build does not name;
    "" if no image is lacking.
    """
    if node.deploy_interface not in _NEEDED:
        return ""
    ways, needed = _NEEDED[node.deploy_interface]
    info = instance_info(spec)
    if any(all(name in info for name in way) for way in ways):
        return ""
    interface = f"the deploy interface of the node, {node.deploy_interface}"
    return f"{interface}, needs {needed}, and the build does not name it"


def _traits(flavor: Flavor, of_image: Sequence[str]) -> list[str]:
    """Return the traits that a flavor and an image require, so that Ironic refuses a node without them."""
    required = (name for name, value in flavor.extra_specs.items() if value == "required")
    matches = (re.fullmatch(r"trait[\w-]*:(\w+)", name) for name in required)
    return sorted({match[1] for match in matches if match} | set(of_image))
