"""Authentication (which identity a token has) and authorization (what the identity may do).

Policy rules use the language of oslo.policy: `@` (always), `!` (never), `role:admin`, `rule:another`,
`project_id:%(project_id)s`, with `and`, `or`, `not` and parentheses.
"""

import hashlib
import hmac
import logging
import math
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Annotated, Literal, Protocol, Self

import msgspec
from yaml import YAMLError, safe_load  # type: ignore[import-untyped]

from bus.acts import MAX_NAME, RANK
from bus.audit_trail import Operator, Role
from placement_worker.http.errors import Problem, without_token

Headers = Mapping[str, str]


Scope = Literal["project", "system", "domain", "none"]


class Identity(msgspec.Struct, frozen=True):
    """The caller of a request: user, project, roles, and limits to cells or projects."""

    user: str
    project: str
    roles: frozenset[str]
    scope: Scope = "project"  # scope of the token
    name: str = ""  # name of the user, if the id is not the name
    until: float = math.inf  # when the token expires
    cells: tuple[str, ...] = ()  # cells to which the roles are limited; empty: no limit
    projects: tuple[str, ...] = ()


class TokenChecker(Protocol):
    """A method of authentication: finds the identities of tokens. Use it with `async with`."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None

    async def __call__(self, headers: Headers) -> Identity | None:
        """Return the identity of a request, or None without a valid token."""

    async def identity(self, token: str) -> Identity | None:
        """Return the identity of a token, or None if it is invalid."""

    async def caller(self, headers: Headers) -> Identity:
        """Return the identity of a request; raise a Problem without a valid token."""
        identity = await self(headers)
        if identity is None:
            raise self.unauthorized()
        return identity

    def unauthorized(self) -> Problem:
        """Return the refusal of a request without a valid token."""
        return without_token()


class UncheckedTokens(TokenChecker):
    """The method `noauth2`, only for development: tokens of the form USER or USER:PROJECT are not checked."""

    async def __call__(self, headers: Headers) -> Identity | None:
        token = headers.get("x-auth-token")
        if not token:
            return None
        user, _, project = token.partition(":")
        roles = "admin" if user == "admin" else headers.get("x-roles", "")
        return Identity(
            user=headers.get("x-user-id", user),
            project=headers.get("x-project-id", project or user),
            roles=frozenset(role.strip().lower() for role in roles.split(",") if role.strip()),
            scope="system" if headers.get("openstack-system-scope", "").lower() == "all" else "project",
        )

    async def identity(self, token: str) -> Identity | None:
        return await self({"x-auth-token": token})


def read_text(path: Path, problem: type[ValueError]) -> str:
    """Read a file; raise `problem` with the reason if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise problem(f"{path}: cannot be read: {getattr(error, 'strerror', 'not text')}") from None


Target = Mapping[str, str]  # attributes of a request for policy rules, such as the project that it is about
Check = Callable[[Identity, Target], bool]

_OWN = {
    "admin_api": "role:admin",
    "service_api": "role:service",
    "admin_or_service_api": "role:admin or role:service",
    "project_reader_api": "role:reader and project_id:%(project_id)s",
    "admin_or_project_reader_or_service_api": "role:admin or rule:project_reader_api or role:service",
}
# The former default of every rule, which is accepted too until `enforce_new_defaults` is set.
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
}
DEFAULTS = {
    **{f"{what}:{how}": "rule:admin_or_service_api" for what, hows in _OPERATIONS.items() for how in hows},
    "placement:resource_providers:usages": "rule:admin_or_service_api",
    "placement:usages": "rule:admin_or_project_reader_or_service_api",
    "placement:reshaper:reshape": "rule:service_api",
}
CONTROL_ROOM = {  # rules of the control room, which accepts the same tokens
    "berth:control_room:show": "rule:berth:reader or rule:berth:cell_operator",
    "berth:control_room:act": "rule:berth:operator or rule:berth:cell_operator",
}
ROLES = {  # berth's role → rule about the roles of the token (docs/roles.md)
    "berth:admin": "role:admin",
    "berth:operator": "role:operator or rule:berth:admin",
    "berth:reader": "role:reader or role:service or rule:berth:operator",
    # For the REST API, limited to the token's project: member like a client of the bus, or only reading.
    "berth:member": "role:member",
    "berth:project_reader": "role:reader or rule:berth:member",
}
_IN_CELL = re.compile(r"berth:operator:([\w-]+)")  # a token's role: operator in this cell only


class BadPolicy(ValueError):
    """The error that a policy file cannot be used; the text names the place and the reason."""


class AccessPolicy:
    """The policy rules that decide which roles may use which operation of the API."""

    def __init__(
        self,
        rules: Mapping[str, str] | None = None,
        *,
        of_features: Mapping[str, str] | None = None,
        enforce_new_defaults: bool = False,
    ) -> None:
        """Create an access policy from an operator's rules; other operations keep the default rules, which
        are DEFAULTS and those of features. Unless `enforce_new_defaults`, the default rules also permit the
        role admin.
        """
        rules = rules or {}
        self._defaults = {**DEFAULTS, **(of_features or {})}
        texts = {**_OWN, **ROLES, **CONTROL_ROOM, **self._defaults}
        self._in_cells = {found[0]: found[1] for name in sorted(rules) if (found := _IN_CELL.fullmatch(name))}
        texts["berth:cell_operator"] = " or ".join(f"rule:{name}" for name in self._in_cells) or "!"
        if not enforce_new_defaults:
            texts |= {name: f"({text}) or {_FORMER}" for name, text in self._defaults.items()}
        texts |= rules
        self._rules: dict[str, Check] = {}
        for name, text in texts.items():
            try:
                self._rules[name] = _Parser(text, self._rules, texts).parsed()
            except BadPolicy as problem:
                raise BadPolicy(f"{name}: {text!r}: {problem}") from None
        try:
            TopologicalSorter({name: _used(text) for name, text in texts.items()}).prepare()
        except CycleError as circle:
            raise BadPolicy(f"{circle.args[1][0]}: leads to itself") from None
        _refuse_unknown(rules, texts, {*_OWN, *ROLES, *CONTROL_ROOM, *self._defaults})

    def allows(self, rule: str, identity: Identity, target: Target) -> bool:
        """Return whether a policy rule permits an identity to act on a target. Return False for a token
        without project scope. An identity limited to cells or projects may call API operations only for its
        projects.
        """
        limited = (identity.cells or identity.projects) and rule in self._defaults
        if limited and target.get("project_id", "") not in identity.projects:
            return False
        return identity.scope == "project" and self._rules[rule](identity, target)

    def operator(self, identity: Identity, known_by: str) -> Operator:
        """Return the identity as an operator, with the highest role that the policy gives it. `known_by`: the
        method of authentication, such as "token file".
        """
        roles: tuple[Role, ...] = ("admin", "operator", "reader")
        target = {"project_id": identity.project}
        role: Role = next((each for each in roles if self.allows(f"berth:{each}", identity, target)), "")
        cells = identity.cells
        if RANK[role] < RANK["operator"]:
            named = [cell for name, cell in self._in_cells.items() if self.allows(name, identity, target)]
            if named := [cell for cell in named if cell in (cells or named)]:
                role, cells = "operator", tuple(named)
        return Operator(
            name=(identity.name or identity.user)[:MAX_NAME],
            role=role,
            known_by=known_by,
            project=identity.project[:MAX_NAME],
            cells=cells,
            projects=identity.projects,
            is_program="service" in identity.roles,
        )


def load_policy(path: Path) -> dict[str, str]:
    """Return the rules in a policy file (JSON, TOML or YAML)."""
    text = read_text(path, BadPolicy)
    try:
        if path.suffix == ".json" or text.lstrip().startswith("{"):
            return msgspec.json.decode(text, type=dict[str, str])
        if path.suffix == ".toml":
            return msgspec.convert(tomllib.loads(text), dict[str, str])
        return msgspec.convert(safe_load(text) or {}, dict[str, str])
    except (msgspec.MsgspecError, tomllib.TOMLDecodeError, RecursionError, YAMLError) as problem:
        raise BadPolicy(f"{path}: {' '.join(str(problem).split())}") from None


_TOKEN = re.compile(r"\s*(\(|\)|[^\s()]*%\([^)]*\)s|[^\s()]+)")
_TARGET = re.compile(r"%\((\w+)\)s")


@dataclass
class _Parser:
    """Parses a policy rule by recursive descent: or, and, not, parentheses, single checks."""

    text: str
    rules: Mapping[str, Check]
    names: Mapping[str, str]

    def parsed(self) -> Check:
        self._tokens = _TOKEN.findall(self.text)
        if not self._tokens:
            return lambda identity, target: True
        check = self._either()
        if self._tokens:
            raise BadPolicy(f"did not expect {self._tokens[0]!r}")
        return check

    def _either(self) -> Check:
        return self._joined("or", any, lambda: self._joined("and", all, self._negation))

    def _joined(
        self, operator: str, judge: Callable[[Iterable[bool]], bool], part: Callable[[], Check]
    ) -> Check:
        checks = [part()]
        while self._took(operator):
            checks.append(part())
        if len(checks) == 1:
            return checks[0]
        return lambda identity, target: judge(check(identity, target) for check in checks)

    def _negation(self) -> Check:
        if self._took("not"):
            check = self._negation()
            return lambda identity, target: not check(identity, target)
        if self._took("("):
            check = self._either()
            if not self._took(")"):
                raise BadPolicy("a parenthesis is not closed")
            return check
        if not self._tokens or self._tokens[0].lower() in (")", "and", "or"):
            raise BadPolicy("a check is missing")
        return self._check(self._tokens.pop(0))

    def _took(self, keyword: str) -> bool:
        if self._tokens and self._tokens[0].lower() == keyword:
            self._tokens.pop(0)
            return True
        return False

    def _check(self, token: str) -> Check:
        if token in ("@", "!"):
            return lambda identity, target: token == "@"
        kind, colon, value = token.partition(":")
        if colon and kind == "role":
            return lambda identity, target: value.lower() in identity.roles
        if colon and kind == "rule":
            if value not in self.names:
                raise BadPolicy(f"there is no rule {value!r}")
            return lambda identity, target: self.rules[value](identity, target)
        if colon and kind in ("project_id", "user_id"):
            named = _TARGET.fullmatch(value)

            def same(identity: Identity, target: Target) -> bool:
                wanted = target.get(named[1]) if named else value
                return bool(wanted) and wanted == (
                    identity.project if kind == "project_id" else identity.user
                )

            return same
        raise BadPolicy(f"{token!r} is no check: there are @, !, role:, rule:, project_id: and user_id:")


def _used(text: str) -> list[str]:
    return re.findall(r"rule:([^\s()]+)", text)


def _refuse_unknown(rules: Mapping[str, str], texts: Mapping[str, str], known: Collection[str]) -> None:
    """Raise BadPolicy if the name of one of an operator's rules is neither an operation nor used in any rule
    (`texts`): the operator probably misspelled the name.
    """
    used = {name for text in texts.values() for name in _used(text)}
    for name in rules:
        if name not in known and name not in used and not _IN_CELL.fullmatch(name):
            nearest = get_close_matches(name, known, 1)
            hint = f"; the nearest is {nearest[0]!r}" if nearest else ""
            raise BadPolicy(f"there is no rule {name!r}, and no other uses it{hint}")


# The tokens of a token file, which identify the users of the Placement API and the control room.


log = logging.getLogger(__name__)


class BadTokens(ValueError):
    """The error that a token file cannot be used; the text has the reason, but quotes no token."""


_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]


class StoredToken(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """An entry of a token file: the token itself or, better, its SHA-256 in hexadecimal."""

    token: Annotated[str, msgspec.Meta(min_length=1)] = ""
    sha256: Annotated[str, msgspec.Meta(pattern="^([0-9a-fA-F]{64})?$")] = ""
    user: _Text
    project: _Text
    roles: tuple[_Text, ...]
    cells: tuple[_Text, ...] = ()
    projects: tuple[_Text, ...] = ()
    since: datetime | None = None  # when `berth access token` made the token


class StoredTokens(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file of tokens."""

    tokens: tuple[StoredToken, ...]


def digest_of(token: str, encoding: str = "utf-8") -> bytes:
    """Return the SHA-256 of a token: only digests are stored and compared."""
    return hashlib.sha256(token.encode(encoding)).digest()


class TokenFile(TokenChecker):
    """The tokens in a TOML or JSON file: a list `tokens`, each with token or sha256, user, project and roles.

    A changed file is read again. If it cannot be read, the previous tokens stay valid.
    """

    def __init__(self, path: Path) -> None:
        """Read the file with the access tokens of API clients; raise BadTokens if it is unusable."""
        self._path = path
        self._stamp = self._stat()
        self._tokens = _identities(path)

    async def __call__(self, headers: Headers) -> Identity | None:
        return self.holder(digest_of(headers.get("x-auth-token", ""), "latin-1"))

    async def identity(self, token: str) -> Identity | None:
        return self.holder(digest_of(token))

    def holder(self, digest: bytes) -> Identity | None:
        """Return the token file's identity for the SHA-256 of a token, or None if it has no such token."""
        if (stamp := self._stat()) != self._stamp:
            self._stamp = stamp
            try:
                self._tokens = _identities(self._path)
            except BadTokens as problem:
                log.error("the tokens stay as they were: %s", problem)
        found = None
        for known, identity in self._tokens:  # no early end: the time must not depend on the token
            if hmac.compare_digest(known, digest):
                found = identity
        return found

    def _stat(self) -> tuple[int, ...]:
        try:
            found = self._path.stat()
        except OSError:
            return ()
        return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino


def read_tokens(path: Path) -> tuple[StoredToken, ...]:
    """Return the tokens of a token file; raise BadTokens if it is unusable."""
    text = read_text(path, BadTokens)
    try:
        if path.suffix == ".json":
            read = msgspec.json.decode(text, type=StoredTokens)
        else:
            read = msgspec.convert(tomllib.loads(text), StoredTokens)
    except msgspec.ValidationError as problem:
        raise BadTokens(f"{path}: {problem}") from None
    except (msgspec.DecodeError, tomllib.TOMLDecodeError, RecursionError):
        # The parser's own message might quote a token.
        raise BadTokens(f"{path}: not {'JSON' if path.suffix == '.json' else 'TOML'}") from None
    if not read.tokens:
        raise BadTokens(f"{path}: there is no token in it")
    for position, token in enumerate(read.tokens):
        if bool(token.token) == bool(token.sha256):
            raise BadTokens(f"{path}: tokens[{position}]: give it either token or sha256")
    return read.tokens


def _identities(path: Path) -> list[tuple[bytes, Identity]]:
    found = []
    for token in read_tokens(path):
        digest = bytes.fromhex(token.sha256) if token.sha256 else digest_of(token.token)
        found.append((digest, identity_of(token)))
    return found


def identity_of(token: StoredToken) -> Identity:
    """Return the identity of the owner of a stored token."""
    roles = frozenset(role.lower() for role in token.roles)
    return Identity(token.user, token.project, roles, cells=token.cells, projects=token.projects)
