"""Authorization: the catalogue of operations, their default rules, and an operator's policy file.

Rules use the language of oslo.policy: `@` (always), `!` (never), `role:admin`, `rule:another`,
`project_id:%(project_id)s`, with `and`, `or`, `not` and parentheses.
"""

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import msgspec

from placement_worker.http.auth import Identity

Target = Mapping[str, str]  # of the request: the project it asks about
Check = Callable[[Identity, Target], bool]

_OWN = {
    "admin_api": "role:admin",
    "service_api": "role:service",
    "admin_or_service_api": "role:admin or role:service",
    "project_reader_api": "role:reader and project_id:%(project_id)s",
    "admin_or_project_reader_or_service_api": "role:admin or rule:project_reader_api or role:service",
}
# the former default of every rule, accepted in addition until new defaults are enforced
_FORMER = "role:admin"

_CRUD = ("list", "create", "show", "update", "delete")
_OPERATIONS = {
    "placement:resource_providers": _CRUD,
    "placement:resource_providers:inventories": _CRUD,
    "placement:resource_providers:aggregates": ("list", "update"),
    "placement:resource_providers:traits": ("list", "update", "delete"),
    "placement:resource_providers:allocations": ("list",),
    "placement:resource_classes": _CRUD,
    "placement:traits": ("list", "show", "update", "delete"),
    "placement:allocations": ("manage", "list", "update", "delete"),
    "placement:allocation_candidates": ("list",),
    "berth:providers": ("load",),
    "berth:changes": ("list",),
    "berth:aggregates": _CRUD,
}
DEFAULTS = {
    **{f"{what}:{how}": "rule:admin_or_service_api" for what, hows in _OPERATIONS.items() for how in hows},
    "placement:resource_providers:usages": "rule:admin_or_service_api",
    "placement:usages": "rule:admin_or_project_reader_or_service_api",
    "placement:reshaper:reshape": "rule:service_api",
}
CONTROL_ROOM = {  # of the page of operators, which believes the same tokens
    "berth:control_room:show": "rule:admin_or_service_api or role:reader",
    "berth:control_room:act": "rule:admin_api",
}


class BadPolicy(ValueError):
    """A policy file cannot be used; the text says where and why."""


class AccessPolicy:
    def __init__(self, rules: Mapping[str, str] | None = None, *, enforce_new_defaults: bool = False) -> None:
        """Create a policy from the operator's rules; all other rules keep their defaults."""
        rules = rules or {}
        texts = {**_OWN, **CONTROL_ROOM, **DEFAULTS}
        if not enforce_new_defaults:
            texts |= {name: f"({text}) or {_FORMER}" for name, text in DEFAULTS.items()}
        texts |= rules
        self._rules: dict[str, Check] = {}
        for name, text in texts.items():
            try:
                self._rules[name] = _Parser(text, self._rules, texts).parsed()
            except BadPolicy as problem:
                raise BadPolicy(f"{name}: {text!r}: {problem}") from None
        _refuse_circles(texts)
        _refuse_unknown(rules, texts)

    def allows(self, rule: str, who: Identity, target: Target) -> bool:
        """Return whether the identity may perform an operation; a system-scoped token may not."""
        return not who.system and self._rules[rule](who, target)


def load(path: Path) -> dict[str, str]:
    """Return the rules of a policy file: JSON, TOML, or lines of `name: rule`."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise BadPolicy(f"{path}: cannot be read: {getattr(problem, 'strerror', 'not text')}") from None
    try:
        if path.suffix == ".json" or text.lstrip().startswith("{"):
            return msgspec.json.decode(text, type=dict[str, str])
        if path.suffix == ".toml":
            return msgspec.convert(tomllib.loads(text), dict[str, str])
        return dict(_lines(text))
    except (msgspec.MsgspecError, tomllib.TOMLDecodeError, RecursionError, BadPolicy) as problem:
        raise BadPolicy(f"{path}: {problem}") from None


_LINE = re.compile(r"""\s*(?:"([^"]*)"|'([^']*)'|([^\s"'#:][^\s"']*?))\s*:(?:\s+(.*))?$""")


def _lines(text: str) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith(("#", "---")):
            continue
        form = _LINE.match(line)
        if form is None:
            raise BadPolicy(f"line {number}: not of the form `name: rule`")
        rule = (form[4] or "").strip()
        if rule[:1] in ("'", '"'):
            rule, _, after = rule[1:].partition(rule[0])
            if after.strip() and not after.lstrip().startswith("#"):
                raise BadPolicy(f"line {number}: more after the rule")
        else:
            rule = rule.partition(" #")[0].strip()
        yield next(name for name in form.group(1, 2, 3) if name is not None), rule


_TOKEN = re.compile(r"\s*(\(|\)|[^\s()]*%\([^)]*\)s|[^\s()]+)")
_TARGET = re.compile(r"%\((\w+)\)s")


@dataclass
class _Parser:
    """A parser of policy rules by recursive descent: or, and, not, parentheses, a check."""

    text: str
    rules: Mapping[str, Check]
    names: Mapping[str, str]

    def parsed(self) -> Check:
        self._tokens = _TOKEN.findall(self.text)
        if not self._tokens:
            return lambda who, target: True
        check = self._either()
        if self._tokens:
            raise BadPolicy(f"did not expect {self._tokens[0]!r}")
        return check

    def _either(self) -> Check:
        return self._joined("or", any, self._both)

    def _both(self) -> Check:
        return self._joined("and", all, self._one)

    def _joined(self, word: str, judge: Callable[[Iterable[bool]], bool], part: Callable[[], Check]) -> Check:
        checks = [part()]
        while self._took(word):
            checks.append(part())
        if len(checks) == 1:
            return checks[0]
        return lambda who, target: judge(check(who, target) for check in checks)

    def _one(self) -> Check:
        if self._took("not"):
            check = self._one()
            return lambda who, target: not check(who, target)
        if self._took("("):
            check = self._either()
            if not self._took(")"):
                raise BadPolicy("a parenthesis is not closed")
            return check
        if not self._tokens or self._tokens[0].lower() in (")", "and", "or"):
            raise BadPolicy("a check is missing")
        return self._check(self._tokens.pop(0))

    def _took(self, word: str) -> bool:
        if self._tokens and self._tokens[0].lower() == word:
            self._tokens.pop(0)
            return True
        return False

    def _check(self, word: str) -> Check:
        if word in ("@", "!"):
            return lambda who, target: word == "@"
        kind, colon, value = word.partition(":")
        if colon and kind == "role":
            return lambda who, target: value.lower() in who.roles
        if colon and kind == "rule":
            if value not in self.names:
                raise BadPolicy(f"there is no rule {value!r}")
            return lambda who, target: self.rules[value](who, target)
        if colon and kind in ("project_id", "user_id"):
            named = _TARGET.fullmatch(value)

            def same(who: Identity, target: Target) -> bool:
                wanted = target.get(named[1]) if named else value
                return bool(wanted) and wanted == (who.project if kind == "project_id" else who.user)

            return same
        raise BadPolicy(f"{word!r} is no check: there are @, !, role:, rule:, project_id: and user_id:")


def _used(text: str) -> list[str]:
    return re.findall(r"rule:([^\s()]+)", text)


def _refuse_unknown(rules: Mapping[str, str], texts: Mapping[str, str]) -> None:
    """Refuse a policy rule that is no operation and that no other rule uses: it is probably misspelled."""
    known = {*_OWN, *CONTROL_ROOM, *DEFAULTS}
    used = {name for text in texts.values() for name in _used(text)}
    for name in rules:
        if name not in known and name not in used:
            nearest = get_close_matches(name, known, 1)
            hint = f"; the nearest is {nearest[0]!r}" if nearest else ""
            raise BadPolicy(f"there is no rule {name!r}, and no other uses it{hint}")


def _refuse_circles(texts: Mapping[str, str]) -> None:
    uses = {name: _used(text) for name, text in texts.items()}
    settled: set[str] = set()

    def visit(name: str, above: tuple[str, ...]) -> None:
        if name in above:
            raise BadPolicy(f"{name}: leads to itself")
        if name not in settled:
            for used in uses.get(name, ()):
                visit(used, (*above, name))
            settled.add(name)

    for name in texts:
        visit(name, ())
