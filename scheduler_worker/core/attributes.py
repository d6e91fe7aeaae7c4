"""Reads attributes of hosts by Nova's names, compares them with extra specs and the hint `query`, and reads
extra specs and image properties.
"""

import operator
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache
from heapq import nlargest
from itertools import takewhile
from typing import Any, Literal, get_args

import msgspec

from bus.reports import HostState
from bus.requests import Flavor, Image
from bus.vocabulary import MAX_INT
from scheduler_worker.core.rule import HostFacts

Attribute = str | float | bool

_OF_PLACEMENT: Mapping[str, Callable[[HostFacts], Attribute]] = {
    "uuid": lambda host: host.root,
    "host": lambda host: host.host,
    "nodename": lambda host: _node(host),
    "hypervisor_hostname": lambda host: _node(host),
    "cell": lambda host: host.cell,
    "zone": lambda host: host.zone,
    "num_io_ops": lambda host: host.building,
    "failed_builds": lambda host: host.failures,
    "free_ram_mb": lambda host: host.free.get("MEMORY_MB", 0),
    "total_usable_ram_mb": lambda host: host.capacity.get("MEMORY_MB", 0),
    "free_disk_gb": lambda host: host.free.get("DISK_GB", 0),
    "free_disk_mb": lambda host: host.free.get("DISK_GB", 0) * 1024,
    "total_usable_disk_gb": lambda host: host.capacity.get("DISK_GB", 0),
    "vcpus_total": lambda host: host.capacity.get("VCPU", 0),
    "vcpus_used": lambda host: host.capacity.get("VCPU", 0) - host.free.get("VCPU", 0),
}
_OF_ITS_REPORT: Mapping[str, Callable[[HostState], Attribute]] = {
    "num_instances": lambda state: state.instances,
    "enabled": lambda state: state.enabled,
    "load": lambda state: state.load,
    "hypervisor_type": lambda state: state.hypervisor,
    "hypervisor_version": lambda state: state.hypervisor_version,
    "architecture": lambda state: state.architecture,
    "host_ip": lambda state: state.ip,
}
OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_NUMBERS = {sign: OPERATORS[sign] for sign in ("==", "!=", ">=", "<=")} | {"=": operator.ge}  # Nova's = is >=
_TEXTS = {f"s{sign}": compares for sign, compares in OPERATORS.items()}
MAX_DEPTH = 32
MAX_LISTS, MAX_VALUES = 20, 200  # limits of a hint `query`, which is evaluated for every host


def _node(host: HostFacts) -> str:
    """Return the host's name as the hypervisor reports it or, if none is reported, its name in placement."""
    return (capability(host.state, "hypervisor_hostname") if host.state is not None else None) or host.host


def attribute(host: HostFacts, name: str) -> Attribute | None:
    """Return an attribute of a host by its name or by a path such as `capabilities:cpu_info:arch`; None if
    the host did not report it.
    """
    reads = _OF_PLACEMENT.get(name)
    if reads is not None:
        return reads(host)
    state = host.state
    if state is None:
        return None
    of_report = _OF_ITS_REPORT.get(name)
    if of_report is not None:
        return of_report(state)
    for scope in ("capabilities", "stats"):
        if name.startswith((f"{scope}.", f"{scope}:")):
            return capability(state, name[len(scope) + 1 :])
    if name.startswith(("metrics.", "metrics:")):
        return state.metrics.get(name[len("metrics.") :])
    return capability(state, name)


def capability(state: HostState, path: str) -> str | None:
    """Return a capability by a path such as `cpu_info:arch` or `cpu_info.arch`; None if not reported."""
    known = state.capabilities
    return known.get(path, known.get(path.replace(":", "."), known.get(path.replace(".", ":"))))


def meets(value: object, demand: str) -> bool:
    """Return whether a host's attribute satisfies the value of an extra spec, such as `>= 4` or `<in> sse`.
    Text satisfies no numeric comparison.
    """
    parts = demand.split()
    text = str(value)
    if not parts:
        return text == demand
    sign, *operands = parts
    if sign == "<or>":
        return text in operands[::2]
    if sign == "<all-in>":
        return bool(operands) and all(operand in text for operand in operands)
    if sign == "<in>":
        return bool(operands) and operands[0] in text
    if sign in _TEXTS:
        return bool(operands) and _TEXTS[sign](text, operands[0])
    if sign in _NUMBERS:
        try:
            return bool(operands) and _NUMBERS[sign](float(text), float(operands[0]))
        except ValueError:
            return False
    return text.lower() == demand.lower() if isinstance(value, bool) else text == demand


class UnreadableQuery(ValueError):
    """The error for an invalid hint `query`; the text gives the reason."""


def _each(compares: Callable[[Any, Any], bool]) -> Callable[[Sequence[Any]], bool]:
    def compared(values: Sequence[Any]) -> bool:
        try:
            return len(values) > 1 and all(compares(values[0], other) for other in values[1:])
        except TypeError:
            return False

    return compared


_COMMANDS: Mapping[str, Callable[[Sequence[Any]], bool]] = {
    "=": _each(operator.eq),
    **{sign: _each(OPERATORS[sign]) for sign in ("<", ">", "<=", ">=")},
    "in": lambda values: len(values) > 1 and values[0] in values[1:],
    "not": lambda values: any(not value for value in values),
    "and": all,
    "or": any,
}


@lru_cache(maxsize=1024)
def parsed(text: str) -> tuple[Any, ...]:
    """Parse the hint `query`. Raise UnreadableQuery with the reason if it is invalid."""
    try:
        query = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as problem:
        raise UnreadableQuery(f"it is not JSON: {problem}") from None
    if not isinstance(query, list):
        raise UnreadableQuery('it is no list, such as [">=", "$free_ram_mb", 1024]')
    checked = _checked(query, 1)
    lists, values = _size(checked)
    if lists > MAX_LISTS or values > MAX_VALUES:
        most = f"at most {MAX_LISTS} and {MAX_VALUES} are evaluated"
        raise UnreadableQuery(f"it has {lists} lists and {values} values, {most}")
    return checked


def _checked(query: list[Any], depth: int) -> tuple[Any, ...]:
    if depth > MAX_DEPTH:
        raise UnreadableQuery(f"it is more than {MAX_DEPTH} lists deep")
    if not query:
        return ()
    command, *operands = query
    if not isinstance(command, str) or command not in _COMMANDS:
        raise UnreadableQuery(f"{command!r} is no command; there are: {', '.join(_COMMANDS)}")
    for operand in operands:
        if isinstance(operand, dict):
            raise UnreadableQuery(f"{operand!r} is neither a value nor a list")
    return command, *(_checked(item, depth + 1) if isinstance(item, list) else item for item in operands)


def _size(query: tuple[Any, ...]) -> tuple[int, int]:
    sizes = [_size(part) if isinstance(part, tuple) else (0, 1) for part in query]
    return 1 + sum(lists for lists, _ in sizes), sum(values for _, values in sizes)


def holds(query: tuple[Any, ...], host: HostFacts) -> bool:
    """Return whether a host satisfies the parsed hint `query`.

    Attributes that the host does not report are removed from the operands. A comparison with fewer than two
    operands is false.
    """
    if not query:
        return True
    command, *operands = query
    values = [_value(operand, host) for operand in operands]
    return _COMMANDS[command]([value for value in values if value is not None])


def _value(operand: Any, host: HostFacts) -> Any:
    if isinstance(operand, tuple):
        return holds(operand, host)
    if isinstance(operand, str) and operand.startswith("$"):
        return attribute(host, operand[1:])
    return operand


MAX_NOTES = 20  # most warnings about one list of a request
_LONGEST = 2000  # most characters of a warning, which may quote a long value
_LIKE = 0.65  # minimum similarity of a misspelt name and a suggestion, from 0 to 1
_COMPARED = 200  # maximum number of names to compare, which takes up to 50 microseconds each
_NUMBER = re.compile(r"[0-9]{1,10}")
_YES, _NO = frozenset({"true", "yes", "on", "1"}), frozenset({"false", "no", "off", "0"})
# Extra specs that only the hypervisor reads; it receives them with the build order.
_OF_THE_HYPERVISOR = """
    hide_hypervisor_id hw:boot_menu hw:cpu_cores hw:cpu_sockets hw:cpu_threads hw:cpu_max_cores
    hw:cpu_max_sockets hw:cpu_max_threads hw:cpu_realtime hw:cpu_realtime_mask hw:hide_hypervisor_id
    hw:input_bus hw:locked_memory hw:maxphysaddr_bits hw:pointer_model hw:redirected_usb_ports
    hw:rescue_bus hw:serial_port_count hw:usb_model hw:vif_multiqueue_enabled hw:watchdog_action
""".split()  # noqa: SIM905 - shorter than a list
# Scopes of extra specs that Ironic, hypervisors or filters read.
_OTHER_READERS = ("quota", "os", "hw_rng", "hw_video", "powervm", "vmware")
_SILENT_SCOPES = (*_OTHER_READERS, "capabilities", "aggregate_instance_extra_specs")
_SHAPED = re.compile(r"(resources|trait)[A-Za-z0-9_-]*:.*|same_subtree[A-Za-z0-9_-]*|hw:numa_(cpus|mem)\.\d+")
NumaPolicy = Literal["legacy", "preferred", "required", "socket"]
NUMA_POLICIES: Mapping[str, NumaPolicy] = {policy: policy for policy in get_args(NumaPolicy)}


class Unreadable(ValueError):
    """The error for a request that contradicts itself or is invalid; the text names the field."""

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
    """The value of an extra spec or image property, with the field's name for error messages."""

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
        self.where = where  # the request's field that contains the flavor, for error messages
        self._properties = image.properties if image is not None else {}

    def of_flavor(self, key: str) -> SpecValue | None:
        value = self.flavor.extra_specs.get(key)
        return None if value is None else SpecValue(value, f"{self.where}.extra_specs[{key!r}]")

    def of_image(self, name: str) -> SpecValue | None:
        value = self._properties.get(name)
        return None if value is None else SpecValue(value, f"image.properties[{name!r}]")

    def get(self, key: str) -> SpecValue | None:
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

    def numbered(self, prefix: str) -> Iterator[tuple[int, SpecValue]]:
        """Yield number and value of each extra spec of this prefix and a number, as in `hw:numa_cpus.0`."""
        for key, value in self.flavor.extra_specs.items():
            number = key.removeprefix(prefix)
            if number != key and number.isdecimal():
                yield int(number), SpecValue(value, f"{self.where}.extra_specs[{key!r}]")


def unknown(flavor: Flavor, where: str, read: Collection[str], unscoped_are_read: bool) -> Iterator[str]:
    """Yield a warning sentence for each extra spec of a flavor that neither berth nor a hypervisor reads.
    `read` has the specs that berth reads; `where` names the flavor's field in the request. With
    `unscoped_are_read`, an enabled filter reads all specs without a scope. Raise Unreadable for `accel:`
    specs.
    """
    if accelerated := next((key for key in flavor.extra_specs if key.partition(":")[0] == "accel"), None):
        why = "there are no device profiles here: ask for the device by its class, as resources1:FPGA=1"
        raise Unreadable(f"{where}.extra_specs[{accelerated!r}]: {why}")
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
    """The devices that a flavor requests by an alias: their resource class, traits and NUMA affinity."""

    resource_class: str
    traits: tuple[str, ...] = ()
    numa_policy: NumaPolicy = "legacy"  # `required`: on a NUMA cell of the guest's processors


@dataclass(frozen=True, eq=False)  # compared by identity: caches use it as a key
class RequestOptions:
    """The settings by which an operator changes how requests are interpreted. The defaults are Nova's."""

    pci_aliases: Mapping[str, PciAlias] = field(default_factory=dict)
    # with True, image properties such as hw_disk_bus become required traits of the host
    image_metadata_traits: bool = False
    image_type_traits: bool = False  # with True, the image's disk_format becomes a required trait of the host
    max_wait: float = 7 * 86400.0  # seconds that a request may wait for capacity
    unscoped: bool = False  # an enabled filter reads extra specs without scope: do not warn about them
    tenant_aggregates: bool = False  # with True, a project that aggregates name may use only their hosts
    tenant_aggregates_required: bool = False  # with True, a project that no aggregate names may use no host
    isolate_aggregates: bool = False  # aggregates with required traits accept only requests for these
