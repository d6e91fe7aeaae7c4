"""Extra specs of flavors that demand something of a host, and their operators."""

import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

CAPABILITIES = "capabilities"  # scopes of extra specs
AGGREGATES = "aggregate_instance_extra_specs"
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


def demands(extra_specs: Mapping[str, str], scope: str) -> Iterator[tuple[str, str, bool]]:
    """Yield (key without prefix, value, has prefix) for each extra spec with the prefix `scope` in its key,
    or without prefix.
    """
    for key, demand in extra_specs.items():
        if key.startswith(scope):
            yield key.removeprefix(scope), demand, True
        elif ":" not in key and key != "group_policy" and not key.startswith("same_subtree"):
            yield key, demand, False


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
