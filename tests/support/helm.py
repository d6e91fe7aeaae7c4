"""Renders the templates of a Helm chart: the subset of Go templates and Sprig functions that the chart uses.

Unlike Helm, a value that does not exist is an error. An unknown function or syntax is an error, too.
"""

import copy
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

_ACTION = re.compile(r"\{\{(-\s)?\s*(/\*.*?\*/|(?:\"[^\"]*\"|[^\"}]|\}(?!\}))*?)\s*(\s-)?\}\}", re.S)
_TOKEN = re.compile(r'\s+|"(?:[^"\\]|\\.)*"|:=|[|()=,]|[$.]?[\w$.]+|[$.]')


class TemplateError(ValueError):
    """Error: a template cannot be rendered."""


@dataclass
class Block:
    """An action with the nodes below it; a text has the keyword `text`, the outermost block has none."""

    keyword: str
    words: list[str] = field(default_factory=list)
    nodes: list["Block"] = field(default_factory=list)
    alternative: list["Block"] = field(default_factory=list)
    text: str = ""


def _words(source: str) -> list[str]:
    found, at = [], 0
    while at < len(source):
        match = _TOKEN.match(source, at)
        if match is None:
            raise TemplateError(f"cannot read {source[at:]!r}")
        if match[0].strip():
            found.append(match[0])
        at = match.end()
    return found


def _pieces(source: str) -> list[Block]:
    """Return the texts and actions of a template in their order, with white space trimmed at {{- and -}}."""
    found, at, trims = [], 0, False
    for action in _ACTION.finditer(source):
        text = source[at : action.start()]
        text = text.lstrip() if trims else text
        found.append(Block("text", text=text.rstrip() if action[1] else text))
        if not action[2].startswith("/*"):
            words = _words(action[2])
            is_keyword = words[0] in ("if", "else", "range", "with", "define", "template", "end")
            found.append(Block(words[0] if is_keyword else "out", words[1:] if is_keyword else words))
        at, trims = action.end(), bool(action[3])
    tail = source[at:].lstrip() if trims else source[at:]
    if "{{" in tail:
        raise TemplateError(f"an action does not end: {tail[tail.index('{{') :][:60]!r}")
    return [*found, Block("text", text=tail)]


def _parse(source: str) -> list[Block]:
    root = Block("")
    stack = [(root, root.nodes)]
    for piece in _pieces(source):
        block, nodes = stack[-1]
        if piece.keyword == "end":
            stack.pop()
        elif piece.keyword == "else":
            stack[-1] = (block, block.alternative)
            if piece.words:  # one `end` ends both
                nested = Block("if", piece.words[1:])
                block.alternative.append(nested)
                stack[-1] = (nested, nested.nodes)
        else:
            nodes.append(piece)
            if piece.keyword in ("if", "range", "with", "define"):
                stack.append((piece, piece.nodes))
        if not stack:
            raise TemplateError("an `end` without a beginning")
    if len(stack) != 1:
        raise TemplateError(f"`{stack[-1][0].keyword}` has no end")
    return root.nodes


def _merge(target: dict[str, Any], *sources: Mapping[str, Any]) -> dict[str, Any]:
    """Merge as Sprig does: a source replaces empty values of the target, also false and 0."""
    for source in sources:
        for key, value in source.items():
            if isinstance(target.get(key), dict) and isinstance(value, dict):
                _merge(target[key], value)
            elif not target.get(key):
                target[key] = copy.deepcopy(value)
    return target


def _dict(*words: Any) -> dict[str, Any]:
    if len(words) % 2:
        raise TemplateError("dict takes pairs of key and value")
    return dict(zip(words[::2], words[1::2], strict=True))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "and": lambda *words: next((word for word in words if not word), words[-1]),
    "append": lambda items, item: [*items, item],
    "base": lambda path: path.rpartition("/")[2],
    "dict": _dict,
    "eq": lambda left, right: left == right,
    "gt": lambda left, right: left > right,
    "int": int,
    "join": lambda separator, items: separator.join(items),
    "list": lambda *items: [*items],
    "merge": _merge,
    "nindent": lambda count, text: "\n" + re.sub("^", " " * count, text, flags=re.M),
    "not": lambda word: not word,
    "printf": lambda form, *words: form % words,
    "quote": lambda text: json.dumps(str(text)),
    "toJson": json.dumps,
    "toYaml": lambda value: yaml.safe_dump(value).rstrip(),
}


class _Run:
    """Renders blocks with variables; a block's variables end with it, assignments to outer ones stay."""

    def __init__(self, defined: Mapping[str, Block], root: Any) -> None:
        self._defined = defined
        self._scopes: list[dict[str, Any]] = [{"$": root}]

    def render(self, nodes: Sequence[Block], dot: Any) -> str:
        self._scopes.append({})
        try:
            return "".join(self._render(node, dot) for node in nodes)
        finally:
            self._scopes.pop()

    def _render(self, node: Block, dot: Any) -> str:
        match node.keyword:
            case "text":
                return node.text
            case "define":
                return ""
            case "if":
                return self.render(node.nodes if self._value(node.words, dot) else node.alternative, dot)
            case "with":
                value = self._value(node.words, dot)
                return self.render(node.nodes, value) if value else self.render(node.alternative, dot)
            case "range":
                return self._range(node, dot)
            case "template":
                value = self._value(node.words[1:], dot)
                block = self._defined.get(json.loads(node.words[0]))
                if block is None:
                    raise TemplateError(f"there is no template {node.words[0]}")
                return _Run(self._defined, value).render(block.nodes, value)
        return self._out(node.words, dot)

    def _out(self, words: list[str], dot: Any) -> str:
        if words[0].startswith("$") and words[1:2] == [":="]:
            self._scopes[-1][words[0]] = self._value(words[2:], dot)
            return ""
        if words[0].startswith("$") and words[1:2] == ["="]:
            self._scope_of(words[0])[words[0]] = self._value(words[2:], dot)
            return ""
        value = self._value(words, dot)
        return str(value).lower() if isinstance(value, bool) else str(value)

    def _range(self, node: Block, dot: Any) -> str:
        names, words = [], node.words
        if ":=" in words:
            at = words.index(":=")
            names, words = [word for word in words[:at] if word != ","], words[at + 1 :]
        items = self._value(words, dot)
        pairs = sorted(items.items()) if isinstance(items, dict) else list(enumerate(items))
        made = []
        for key, item in pairs:
            values = (key, item) if len(names) == 2 else (item,)
            self._scopes.append(dict(zip(names, values, strict=False)))
            made.append(self.render(node.nodes, item))
            self._scopes.pop()
        return "".join(made) if pairs else self.render(node.alternative, dot)

    def _scope_of(self, name: str) -> dict[str, Any]:
        holders: list[dict[str, Any]] = [scope for scope in self._scopes if name in scope]
        if not holders:
            raise TemplateError(f"there is no variable {name}")
        return holders[-1]

    def _value(self, words: Sequence[str], dot: Any) -> Any:
        """Return the value of a pipeline."""
        rest = [*words]
        value = self._pipeline(rest, dot)
        if rest:
            raise TemplateError(f"cannot read {' '.join(rest)!r}")
        return value

    def _pipeline(self, rest: list[str], dot: Any) -> Any:
        piped: list[Any] = []
        while True:
            name = rest[0] if rest and rest[0] in FUNCTIONS else ""
            if name:
                rest.pop(0)
            operands = []
            while rest and rest[0] not in ("|", ")"):
                operands.append(self._operand(rest, dot))
            if name:
                value = FUNCTIONS[name](*operands, *piped)
            elif len(operands) == 1 and not piped:
                (value,) = operands
            else:
                raise TemplateError(f"not a function with arguments, or nothing: {operands}")
            if not rest or rest[0] == ")":
                return value
            rest.pop(0)
            piped = [value]

    def _operand(self, rest: list[str], dot: Any) -> Any:
        word = rest.pop(0)
        if word == "(":
            value = self._pipeline(rest, dot)
            if not rest or rest.pop(0) != ")":
                raise TemplateError("a parenthesis is not closed")
            return value
        if word.startswith('"') or word.isdigit() or word in ("true", "false"):
            return json.loads(word)
        if word.startswith("."):
            return _field(dot, word)
        if word.startswith("$"):
            name, _, path = word.partition(".")
            return _field(self._scope_of(name)[name], f".{path}")
        raise TemplateError(f"there is no function {word}")


def _field(value: Any, path: str) -> Any:
    for name in filter(None, path.split(".")):
        if not isinstance(value, dict) or name not in value:
            raise TemplateError(f"there is no value {path}")
        value = value[name]
    return value


def render(
    chart: Path, values: Mapping[str, Any], change: Callable[[str], str] = lambda text: text
) -> dict[str, str]:
    """Return the text of each rendered template by its file name; `change` edits the templates before."""
    sources = {path.name: change(path.read_text()) for path in sorted((chart / "templates").iterdir())}
    parsed = {name: _parse(source) for name, source in sources.items()}
    defined = {
        json.loads(node.words[0]): node
        for nodes in parsed.values()
        for node in nodes
        if node.keyword == "define"
    }
    root = {"Values": dict(values), "Release": {"Name": "berth"}}
    return {
        name: _Run(defined, root).render(nodes, root)
        for name, nodes in parsed.items()
        if not name.startswith("_")
    }
