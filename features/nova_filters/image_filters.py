"""Filters for the image of a request."""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

from bus.reports import HostState
from bus.requests import Image
from features.nova_filters.core.attributes import capability
from features.nova_filters.core.extra_specs import OPERATORS
from scheduler_worker.core.extension import HostFacts, Rule
from scheduler_worker.extension import Alternative

# Names of image properties: the present name, then the former one.
_ARCHITECTURE = ("hw_architecture", "architecture")
_HYPERVISOR = ("img_hv_type", "hypervisor_type")
_VM_MODE = ("hw_vm_mode", "vm_mode")
_VERSION = ("img_hv_requested_version", "hypervisor_version_requires")
_ADDRESS_BITS = ("hw_maxphysaddr_bits",)
_SPELLINGS: Mapping[str, str] = {
    "amd64": "x86_64",
    "x86-64": "x86_64",
    "x64": "x86_64",
    "x86": "i686",
    "i386": "i686",
    "i486": "i686",
    "i586": "i686",
    "arm64": "aarch64",
    "hv": "hvm",
    "pv": "xen",
    "baremetal": "hvm",
}
_CONDITION = re.compile(r"\s*(==|!=|<=|>=|<|>|=)?\s*([0-9]+(?:\.[0-9]+)*)\s*")


def image_properties(*, image_properties_default_architecture: str = "") -> Rule:
    """Accept hosts with the architecture, hypervisor, VM mode and version that the image requires.

    A host that does not report a required architecture, hypervisor or VM mode is rejected. A host that does
    not report its version or address width is accepted.
    """
    default = image_properties_default_architecture

    def refuses(host: HostFacts, alternative: Alternative) -> str | None:
        image = alternative.request.image
        if image is None:
            return None
        demanded = (_of(image, _ARCHITECTURE) or default, _of(image, _HYPERVISOR), _of(image, _VM_MODE))
        why = _kind(demanded, host.state) if any(demanded) else None
        return why or _version(image, host.state) or _address_bits(image, host.state)

    def concerns(alternative: Alternative) -> bool:
        return alternative.request.image is not None

    return Rule("image_properties", refuses, reads=("image",), concerns=concerns)


def isolated_hosts(
    *,
    isolated_hosts: Sequence[str] = (),
    isolated_images: Sequence[str] = (),
    restrict_isolated_hosts_to_isolated_images: bool = True,
) -> Rule:
    """Accept isolated images only on isolated hosts, and other images on isolated hosts only if options
    permit it.

    The options list hosts by name or root, and images by name.
    """
    hosts, images = frozenset(isolated_hosts), frozenset(isolated_images)

    def refuses(host: HostFacts, alternative: Alternative) -> str | None:
        image = alternative.request.image
        is_isolated = image is not None and image.name in images
        isolated = host.host in hosts or host.root in hosts
        if is_isolated and not isolated:
            return f"image {image.name if image else ''!r} runs on isolated hosts only"
        if isolated and not is_isolated and restrict_isolated_hosts_to_isolated_images:
            return "it is only for isolated images"
        return None

    any_isolated = bool(hosts or images)
    return Rule("isolated_hosts", refuses, reads=("image",), concerns=lambda alternative: any_isolated)


_Kind = tuple[str, str, str]  # a type of guest: architecture, hypervisor, VM mode


def _kind(demanded: _Kind, state: HostState | None) -> str | None:
    """Return why a host cannot run guests of this architecture, hypervisor and VM mode; None if it can. An
    empty text in `demanded` permits every value.
    """
    kinds = _parts(state.guest_kinds) if state is not None else ()
    has: Sequence[Sequence[str]] = tuple(zip(*kinds, strict=True)) or ((), (), ())
    if state is not None and not kinds:
        has = (state.architecture,), (state.hypervisor,), state.vm_modes
    for name, needed, values in zip(("architecture", "hypervisor", "VM mode"), demanded, has, strict=True):
        if needed and _spelled(needed) not in [_spelled(value) for value in values]:
            names = ", ".join(dict.fromkeys(filter(None, values)))
            reported = f"it has {names}" if names else "it does not report any"
            return f"the image needs {name} {needed}; {reported}"
    if not kinds or any(_is_of(kind, demanded) for kind in kinds):
        return None
    return f"the image needs {', '.join(filter(None, demanded))}; no kind of its guests has all of it"


def _is_of(kind: _Kind, demanded: _Kind) -> bool:
    return all(
        not needed or _spelled(needed) == _spelled(part) for needed, part in zip(demanded, kind, strict=True)
    )


@lru_cache(maxsize=1024)
def _parts(kinds: tuple[str, ...]) -> tuple[_Kind, ...]:
    """Split guest kinds such as `x86_64/kvm/hvm` into parts; cached, because many hosts have equal kinds."""
    parts = [kind.split("/", 2) for kind in kinds]
    return tuple([(part[0], part[1], part[2]) for part in parts if len(part) == 3])


def _of(image: Image, names: Sequence[str]) -> str:
    return next((image.properties[name] for name in names if image.properties.get(name)), "")


def _spelled(text: str) -> str:
    plain = text.strip().lower()
    return _SPELLINGS.get(plain, plain)


def _version(image: Image, state: HostState | None) -> str | None:
    needed = _of(image, _VERSION)
    if not needed or state is None or not state.hypervisor_version:
        return None
    conditions = _conditions(needed)
    if conditions is None:
        return f"the image needs hypervisor version {needed!r}, which is not a valid condition"
    number = state.hypervisor_version
    version = (number // 1_000_000, number // 1000 % 1000, number % 1000)
    if all(OPERATORS[sign](version, wanted) for sign, wanted in conditions):
        return None
    return f"the image needs hypervisor version {needed}; it has {'.'.join(map(str, version))}"


@lru_cache(maxsize=256)
def _conditions(text: str) -> tuple[tuple[str, tuple[int, ...]], ...] | None:
    """Parse conditions such as `>=6.0, <7`; return None if the text is invalid."""
    found = []
    for part in text.strip().strip("()").split(","):
        match = _CONDITION.fullmatch(part)
        if match is None:
            return None
        numbers = [int(number) for number in match[2].split(".")]
        sign = "==" if match[1] in (None, "=") else match[1]
        found.append((sign, (*numbers, 0, 0, 0)[:3]))
    return tuple(found)


def _address_bits(image: Image, state: HostState | None) -> str | None:
    needed = _of(image, _ADDRESS_BITS)
    if not needed or state is None:
        return None
    reported = capability(state, "cpu_info:maxphysaddr:bits") or capability(state, "maxphysaddr_bits")
    if not reported or not reported.isdecimal() or not needed.isdecimal() or int(reported) >= int(needed):
        return None
    return f"the image needs addresses of {needed} bits; it has {reported}"
