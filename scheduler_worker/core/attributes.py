"""Attributes of a host by Nova's names, and the two languages that compare them: operators of extra specs
(`>= 4`, `<in> avx`), and the hint `query` (`["and", [">=", "$free_ram_mb", 1024], ["=", "$zone", "a"]]`).
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from bus.reports import HostState
from scheduler_worker.core.rule import HostFacts

Attribute = str | float | bool

_OF_PLACEMENT: Mapping[str, Callable[[HostFacts], Attribute]] = {
    "uuid": lambda host: host.root,
    "host": lambda host: host.host,
    "nodename": lambda host: host.host,
    "hypervisor_hostname": lambda host: host.host,
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
_NUMBERS = {sign: OPERATORS[sign] for sign in ("==", "!=", ">=", "<=")} | {"=": operator.ge}  # as Nova does
_TEXTS = {f"s{sign}": compares for sign, compares in OPERATORS.items()}
MAX_DEPTH = 32
MAX_LISTS, MAX_VALUES = 20, 200  # each is evaluated for every host


def attribute(host: HostFacts, name: str) -> Attribute | None:
    """Return an attribute of a host by its name or by a path such as `capabilities:cpu_info:arch`."""
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
    """Return a property that the host reported under this path, in either spelling."""
    known = state.capabilities
    return known.get(path, known.get(path.replace(":", "."), known.get(path.replace(".", ":"))))


def meets(value: object, demand: str) -> bool:
    """Return whether an attribute satisfies an extra spec; a text satisfies no numeric comparison."""
    words = demand.split()
    text = str(value)
    if not words:
        return text == demand
    sign, *operands = words
    if sign == "<or>":
        return text in operands[::2]
    if sign == "<all-in>":
        return bool(operands) and all(word in text for word in operands)
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
    """The query is not valid; the text gives the reason."""


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
    """Return the parsed hint `query`. Raise UnreadableQuery with the mistake."""
    try:
        query = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as problem:
        raise UnreadableQuery(f"it is not JSON: {problem}") from None
    if not isinstance(query, list):
        raise UnreadableQuery('it is no list, such as [">=", "$free_ram_mb", 1024]')
    checked = _checked(query, 1)
    lists, values = _size(checked)
    if lists > MAX_LISTS or values > MAX_VALUES:
        raise UnreadableQuery(
            f"it has {lists} lists and {values} values, at most {MAX_LISTS} and {MAX_VALUES} are evaluated"
        )
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
    return command, *(_checked(one, depth + 1) if isinstance(one, list) else one for one in operands)


def _size(query: tuple[Any, ...]) -> tuple[int, int]:
    sizes = [_size(one) if isinstance(one, tuple) else (0, 1) for one in query]
    return 1 + sum(lists for lists, _ in sizes), sum(values for _, values in sizes)


def holds(query: tuple[Any, ...], host: HostFacts) -> bool:
    """Return whether a parsed query is true of a host; missing facts are left out of comparisons."""
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
