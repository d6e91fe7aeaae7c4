"""The language of the hint `query`: `["and", [">=", "$free_ram_mb", 1024], ["=", "$zone", "a"]]`."""

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from scheduler_worker.core.attributes import attribute
from scheduler_worker.core.facts import HostFacts

MAX_DEPTH = 32
MAX_LISTS, MAX_VALUES = 20, 200  # each is evaluated for every host


class UnreadableQuery(ValueError):
    """The query is not valid; the text gives the reason."""


def _each(compares: Callable[[Any, Any], bool]) -> Callable[[Sequence[Any]], bool]:
    """Return a function that compares the first value with each other one; it is false for fewer than two
    values or values that do not compare.
    """

    def compared(values: Sequence[Any]) -> bool:
        try:
            return len(values) > 1 and all(compares(values[0], other) for other in values[1:])
        except TypeError:
            return False

    return compared


_COMMANDS: Mapping[str, Callable[[Sequence[Any]], bool]] = {
    "=": _each(operator.eq),
    "<": _each(operator.lt),
    ">": _each(operator.gt),
    "<=": _each(operator.le),
    ">=": _each(operator.ge),
    "in": lambda values: len(values) > 1 and values[0] in values[1:],
    "not": lambda values: any(not value for value in values),
    "and": all,
    "or": any,
}


@lru_cache(maxsize=1024)
def parsed(text: str) -> tuple[Any, ...]:
    """Return the query after checks. Raise UnreadableQuery with the mistake."""
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
    """Return the number of lists in this query, itself included, and the number of other values."""
    sizes = [_size(one) if isinstance(one, tuple) else (0, 1) for one in query]
    return 1 + sum(lists for lists, _ in sizes), sum(values for _, values in sizes)


def holds(query: tuple[Any, ...], host: HostFacts) -> bool:
    """Return whether the query is true of this host. Missing facts are left out of comparisons; an empty
    query is true.
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
