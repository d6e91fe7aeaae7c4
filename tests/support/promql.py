"""Reads PromQL expressions: metrics, their label selectors, and grouping labels."""

import re
from dataclasses import dataclass, field

_VALUES = re.compile(r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|\[[^\]]*\]""")  # strings and ranges
_GROUPS = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_METRICS = re.compile(
    r"\b(?!(?:and|or|unless|bool|offset)\b)([a-zA-Z_:][\w:]*)\b(?!\s*\()(?:\s*\{([^}]*)\})?"
)
_AGGREGATIONS = re.compile(r"\b\w+\s*(?=\()")


@dataclass
class AskedOfPrometheus:
    metrics: dict[str, set[str]] = field(default_factory=dict)  # with the labels each is picked by
    sorted_by: set[str] = field(default_factory=set)


def asked(expression: str) -> AskedOfPrometheus:
    text, found = _VALUES.sub(" ", expression), AskedOfPrometheus()
    if text.count("(") != text.count(")"):
        raise ValueError(f"{expression!r}: brackets do not match")
    for names in _GROUPS.findall(text):
        found.sorted_by |= set(re.findall(r"\w+", names))
    for name, selectors in _METRICS.findall(_AGGREGATIONS.sub(" ", _GROUPS.sub("", text))):
        found.metrics.setdefault(name, set()).update(re.findall(r"\w+", selectors))
    return found
