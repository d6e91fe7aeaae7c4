"""Operators in extra specs: `>= 4`, `s== x86`, `<in> avx`, `<or> a <or> b`, or a plain text."""

import operator
from collections.abc import Callable, Mapping

Compares = Callable[[float, float], bool]

_NUMBERS: Mapping[str, Compares] = {
    "=": operator.ge,  # as Nova reads it
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    "<=": operator.le,
}
_TEXTS: Mapping[str, Callable[[str, str], bool]] = {
    "s==": operator.eq,
    "s!=": operator.ne,
    "s<": operator.lt,
    "s<=": operator.le,
    "s>": operator.gt,
    "s>=": operator.ge,
}


def meets(value: object, demand: str) -> bool:
    """Return whether the value satisfies the requirement. A value that is not a number satisfies no numeric
    comparison.
    """
    words = demand.split()
    said = _text(value)
    if not words:
        return said == demand
    sign, *operands = words
    if sign == "<or>":
        return said in operands[::2]
    if sign == "<all-in>":
        return bool(operands) and all(word in said for word in operands)
    if sign == "<in>":
        return bool(operands) and operands[0] in said
    if sign in _TEXTS:
        return bool(operands) and _TEXTS[sign](said, operands[0])
    if sign in _NUMBERS:
        return bool(operands) and _compared(_NUMBERS[sign], said, operands[0])
    return said.lower() == demand.lower() if isinstance(value, bool) else said == demand


def _text(value: object) -> str:
    return str(value)


def _compared(compares: Compares, value: str, with_: str) -> bool:
    try:
        return compares(float(value), float(with_))
    except ValueError:
        return False
