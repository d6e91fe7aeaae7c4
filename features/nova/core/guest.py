"""Converts the flavor and image of a RequestSpec to berth's `Flavor` and `Image`.

Nova and berth interpret some properties differently. This module changes the properties so that berth
requires of a host what Nova's pre-filters and `ResourceRequest.from_request_spec` require.
"""

import re
from collections.abc import Iterator, Mapping

import os_resource_classes  # type: ignore[import-untyped]

from bus.requests import Flavor, Image
from features.nova.core.request_spec import RequestSpec

# Extra specs that Nova itself translates into resource groups.
_IN_GROUPS = ("accel:device_profile", "pci_passthrough:alias")
# Properties for which Nova demands nothing of a host if the flavor has them.
_NO_DEMANDS = ("hw:viommu_model", "hw:firmware_stateless")
# Extra specs that are true or false.
_SWITCHES = ("hw:mem_encryption", "hw:virtio_packed_ring", "hw:ephemeral_encryption")
_TRUE = ("1", "t", "true", "on", "y", "yes")
_GROUP_POLICIES = ("none", "isolate")
_GRANULAR = re.compile(r"(resources|trait)([A-Za-z0-9_-]*):(.*)", re.DOTALL)
_MAX_SUFFIX = 64
_TRAIT_VALUE = re.compile(r"required|forbidden|preferred(:.*)?|any[A-Za-z0-9_-]*")
_DEFAULTS_OF_TPM = {"hw:tpm_model": "tpm-tis", "hw:tpm_secret_security": "user"}
# Nova compares the version and the address width only for images with one of the properties in `_KINDS`.
_KINDS = ("hw_architecture", "img_hv_type", "hw_vm_mode")
_ONLY_WITH_KIND = ("img_hv_requested_version", "hw_maxphysaddr_bits")


def flavor_of(spec: RequestSpec) -> Flavor:
    """Return the flavor of a request of Nova; its disk is what the instance needs locally."""
    flavor = spec.flavor
    disk = flavor.ephemeral_gb + -(-flavor.swap // 1024) + (0 if spec.is_bfv else flavor.root_gb)
    extra = dict(_read_by_nova(flavor.extra_specs))
    if _property(spec, "hw:sound_model") != "virtio":
        extra.pop("hw:sound_model", None)
    if bits := extra.pop("hw:maxphysaddr_bits", ""):
        extra["capabilities:cpu_info:maxphysaddr:bits"] = f">= {bits}"
    if spec.is_rebuild:  # only the new image is compared with the host
        extra = {}
    elif _property(spec, "hw:tpm_version"):
        extra |= {key: value for key, value in _DEFAULTS_OF_TPM.items() if not _property(spec, key)}
    return Flavor(
        name=flavor.name or "unnamed",
        vcpus=flavor.vcpus,
        memory_mb=flavor.memory_mb,
        disk_gb=disk,
        extra_specs=extra,
    )


def _read_by_nova(extra_specs: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the extra specs that demand something, with the values that Nova reads. Nova ignores unknown
    values of resources, traits and `group_policy`, and any value of a switch that is not true is false.
    """
    for key, value in extra_specs.items():
        if key in (*_IN_GROUPS, *_NO_DEMANDS) or (key == "group_policy" and value not in _GROUP_POLICIES):
            continue
        if key in _SWITCHES:
            yield key, str(value.strip().lower() in _TRUE).lower()
        elif (parts := _GRANULAR.fullmatch(key)) is None:
            yield key, value
        elif (read := _granular(parts[1], parts[2], parts[3], value)) is not None:
            yield key, read


def _granular(kind: str, suffix: str, name: str, value: str) -> str | None:
    """Return the amount of a resource, or whether a trait is required, as Nova reads it; None if Nova ignores
    it. Values that only berth knows, such as `preferred`, are returned as they are.
    """
    if len(suffix) > _MAX_SUFFIX:
        return None
    if kind == "trait":
        return value if _TRAIT_VALUE.fullmatch(value) else None
    if not name.startswith("CUSTOM_") and name not in os_resource_classes.STANDARDS:
        return None
    if value.startswith("preferred:"):
        return value
    try:
        amount = int(value)
    except ValueError:
        return None
    return str(amount) if amount >= 0 else None


def image_of(spec: RequestSpec) -> Image | None:
    """Return the image of a request of Nova with its properties as berth names them."""
    if spec.image is None:
        return None
    values = dict(spec.image.properties or {})
    traits = values.pop("traits_required", None) or ()
    properties = {key: _text(value) for key, value in values.items() if value is not None}
    for name in _ignored(properties):
        properties.pop(name, None)
    if spec.image.disk_format and not spec.is_bfv:
        properties["disk_format"] = spec.image.disk_format
    name = spec.image.name or spec.image.id or "unnamed"
    return Image(name=name[:200], properties=properties, traits_required=tuple(traits))


def root_traits_of(spec: RequestSpec) -> Iterator[str]:
    """Yield the traits that Nova requires of a host for this request, and that berth does not derive from the
    flavor and image.
    """
    if spec.flavor.extra_specs.get("accel:device_profile"):
        yield "COMPUTE_ACCELERATORS"
    if _property(spec, "hw:pci_numa_affinity_policy") == "socket":  # also without a device
        yield "COMPUTE_SOCKET_PCI_NUMA_AFFINITY"


def _ignored(properties: Mapping[str, str]) -> Iterator[str]:
    """Yield the image properties that berth must ignore, because Nova demands nothing of a host for them."""
    yield "hw_viommu_model"
    if properties.get("hw_sound_model") != "virtio":
        yield "hw_sound_model"
    if properties.get("hw_firmware_type") != "uefi":
        yield "hw_firmware_stateless"
    if not any(properties.get(name) for name in _KINDS):
        yield from _ONLY_WITH_KIND


def _property(spec: RequestSpec, key: str) -> str:
    """Return the flavor's extra spec `key`, or else the image property `key` with `_` for its first `:`; ""
    if both are missing.
    """
    of_image = (spec.image.properties or {}) if spec.image is not None else {}
    return spec.flavor.extra_specs.get(key) or _text(of_image.get(key.replace(":", "_", 1)) or "")


def _text(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case list() | tuple():
            return ",".join(str(item) for item in value)
    return str(value)
