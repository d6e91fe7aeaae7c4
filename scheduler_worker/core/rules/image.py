"""Filters about what a host can run: by the image, by extra specs of the flavor, or by the hint `query`."""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

from bus.reports import HostState
from bus.requests import Image
from scheduler_worker.core.attributes import (
    OPERATORS,
    UnreadableQuery,
    attribute,
    capability,
    holds,
    meets,
    parsed,
)
from scheduler_worker.core.rule import Alternative, HostFacts, Rule
from scheduler_worker.core.rules.aggregates import demands

# One spelling for each; a property may have an older name.
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
    """The host has the architecture, hypervisor and VM mode that the image names, and a permitted version.

    A host that does not report one of these is rejected for an image that names it; an unknown version or
    address width is accepted.
    """
    default = image_properties_default_architecture

    def refuses(host: HostFacts, alternative: Alternative) -> str | None:
        image = alternative.request.image
        if image is None:
            return None
        state = host.state
        has: tuple[tuple[str, str, Sequence[str]], ...] = (
            ("architecture", _of(image, _ARCHITECTURE) or default, (state.architecture,) if state else ()),
            ("hypervisor", _of(image, _HYPERVISOR), (state.hypervisor,) if state else ()),
            ("VM mode", _of(image, _VM_MODE), state.vm_modes if state else ()),
        )
        for what, needed, there in has:
            if needed and _spelled(needed) not in [_spelled(one) for one in there]:
                said = (
                    f"it has {', '.join(filter(None, there))}"
                    if any(there)
                    else "it does not say which it has"
                )
                return f"the image needs {what} {needed}; {said}"
        return _version(image, state) or _address_bits(image, state)

    return Rule(
        "image_properties",
        refuses,
        reads=("image",),
        concerns=lambda alternative: alternative.request.image is not None,
    )


def isolated_hosts(
    *,
    isolated_hosts: Sequence[str] = (),
    isolated_images: Sequence[str] = (),
    restrict_isolated_hosts_to_isolated_images: bool = True,
) -> Rule:
    """The isolated images run on the isolated hosts only, and other images do not run there unless permitted.

    Hosts are known by name or root, images by name.
    """
    hosts, images = frozenset(isolated_hosts), frozenset(isolated_images)

    def refuses(host: HostFacts, alternative: Alternative) -> str | None:
        image = alternative.request.image
        is_isolated = image is not None and image.name in images
        kept = host.host in hosts or host.root in hosts
        if is_isolated and not kept:
            return f"image {image.name if image else ''!r} runs on isolated hosts only"
        if kept and not is_isolated and restrict_isolated_hosts_to_isolated_images:
            return "it is kept for isolated images"
        return None

    return Rule(
        "isolated_hosts", refuses, reads=("image",), concerns=lambda alternative: bool(hosts or images)
    )


def _of(image: Image, names: Sequence[str]) -> str:
    return next((image.properties[name] for name in names if image.properties.get(name)), "")


def _spelled(word: str) -> str:
    plain = word.strip().lower()
    return _SPELLINGS.get(plain, plain)


def _version(image: Image, state: HostState | None) -> str | None:
    needed = _of(image, _VERSION)
    if not needed or state is None or not state.hypervisor_version:
        return None
    conditions = _conditions(needed)
    if conditions is None:
        return f"the image needs hypervisor version {needed!r}, which is none"
    number = state.hypervisor_version
    version = (number // 1_000_000, number // 1000 % 1000, number % 1000)
    if all(OPERATORS[sign](version, wanted) for sign, wanted in conditions):
        return None
    return f"the image needs hypervisor version {needed}; it has {'.'.join(map(str, version))}"


@lru_cache(maxsize=256)
def _conditions(text: str) -> tuple[tuple[str, tuple[int, ...]], ...] | None:
    """Return the parsed conditions of a text such as `>=6.0, <7`, or None for an invalid text."""
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
    said = capability(state, "cpu_info:maxphysaddr:bits") or capability(state, "maxphysaddr_bits")
    if not said or not said.isdecimal() or not needed.isdecimal() or int(said) >= int(needed):
        return None
    return f"the image needs addresses of {needed} bits; it has {said}"


_SCOPE = "capabilities:"


def compute_capabilities() -> Rule:
    """The host's attributes satisfy the extra specs with `capabilities:PATH` or with the name of an
    attribute.

    A missing attribute fails a `capabilities:` requirement; a name without a scope that the host does not
    report is ignored.
    """

    def refuses(host: HostFacts, alternative: Alternative) -> str | None:
        for path, demand, scoped in demands(alternative.flavor.extra_specs, _SCOPE):
            value = attribute(host, path)
            if (value is None and scoped) or (value is not None and not meets(value, demand)):
                return f"{path} is to be {demand}; {f'it is {value}' if value else 'it does not say'}"
        return None

    return Rule(
        "compute_capabilities",
        refuses,
        reads=("flavor.extra_specs",),
        concerns=lambda alternative: any(demands(alternative.flavor.extra_specs, _SCOPE)),
    )


def json() -> Rule:
    """The hint `query` is true of the host: `[">=", "$free_ram_mb", 1024]`."""

    def refuses(host: HostFacts, alternative: Alternative) -> str | None:
        query = alternative.request.hints.query
        try:
            return None if not query or holds(parsed(query), host) else "the query is not true of it"
        except UnreadableQuery as problem:
            return f"the query means nothing: {problem}"

    return Rule(
        "json",
        refuses,
        reads=("hints.query",),
        concerns=lambda alternative: bool(alternative.request.hints.query),
    )
