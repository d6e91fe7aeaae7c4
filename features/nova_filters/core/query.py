"""Reads and evaluates the hint `query`, a condition on the attributes of hosts."""

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from features.nova_filters.core.attributes import attribute
from features.nova_filters.core.extra_specs import OPERATORS
from scheduler_worker.core.extension import HostFacts

MAX_DEPTH = 32
MAX_LISTS, MAX_VALUES = 20, 200  # limits of a hint `query`, which is evaluated for every host


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
