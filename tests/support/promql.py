"""Parses PromQL expressions: metrics, their label selectors, and grouping labels."""

import re
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r"""(?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')"""
    r"|(?P<range>\[[^\]]*\])"
    r"|(?P<number>\d+(?:\.\d+)?(?:e[+-]?\d+)?[a-z]*)"
    r"|(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)"
    r"|(?P<sign>=~|!~|!=|==|>=|<=|[-+*/%^=<>(){},])"
    r"|(?P<blank>\s+)"
)
_BY = {"by", "without", "on", "ignoring", "group_left", "group_right"}
_WORDS = {"and", "or", "unless", "bool", "offset"}


@dataclass
class AskedOfPrometheus:
    metrics: dict[str, set[str]] = field(default_factory=dict)  # with the labels each is picked by
    sorted_by: set[str] = field(default_factory=set)


def asked(expression: str) -> AskedOfPrometheus:
    tokens = _tokens(expression)
    found = AskedOfPrometheus()
    at, depth = 0, 0
    while at < len(tokens):
        word = tokens[at]
        if word in _BY:
            labels, at = _names(tokens, at + 1, "(", ")")
            found.sorted_by |= labels
            continue
        if word == "(":
            depth += 1
        elif word == ")":
            depth -= 1
        elif re.match(r"[a-zA-Z_:]", word) and word not in _WORDS and tokens[at + 1 : at + 2] != ["("]:
            if tokens[at + 1 : at + 2] and tokens[at + 1] in _BY:  # an aggregation: sum by (...) (...)
                at += 1
                continue
            picked: set[str] = set()
            if tokens[at + 1 : at + 2] == ["{"]:
                picked, at = _names(tokens, at + 1, "{", "}")
                at -= 1
            found.metrics.setdefault(word, set()).update(picked)
        at += 1
    if depth:
        raise ValueError(f"{expression!r}: brackets do not match")
    return found


def _tokens(expression: str) -> list[str]:
    tokens, at = [], 0
    while at < len(expression):
        match = _TOKEN.match(expression, at)
        if match is None:
            raise ValueError(f"{expression!r}: what is {expression[at:]!r}?")
        if match.lastgroup in ("name", "sign", "string", "number"):
            tokens.append(match[0])
        at = match.end()
    return tokens


def _names(tokens: list[str], at: int, begin: str, end: str) -> tuple[set[str], int]:
    """The names in the brackets that begin here, and where what follows them is."""
    if tokens[at] != begin:
        raise ValueError(f"{begin} is missing before {tokens[at]!r}")
    close = tokens.index(end, at)
    return {token for token in tokens[at + 1 : close] if re.fullmatch(r"[a-zA-Z_]\w*", token)}, close + 1
