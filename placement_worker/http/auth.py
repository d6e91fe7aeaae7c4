"""Who asks: `noauth2` believes what it is told, for development; tokens from a file prove it."""

import hashlib
import hmac
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import msgspec

Headers = Mapping[str, str]


class Identity(msgspec.Struct, frozen=True):
    user: str
    project: str
    roles: frozenset[str]
    system: bool = False  # its token is for the whole system rather than for a project


Authenticate = Callable[[Headers], Identity | None]  # None: not known


def noauth2(headers: Headers) -> Identity | None:
    """The token says who: USER or USER:PROJECT. `admin` is one; others name their roles in a header."""
    token = headers.get("x-auth-token")
    if not token:
        return None
    user, _, project = token.partition(":")
    roles = "admin" if user == "admin" else headers.get("x-roles", "")
    return Identity(
        user=headers.get("x-user-id", user),
        project=headers.get("x-project-id", project or user),
        roles=frozenset(role.strip().lower() for role in roles.split(",") if role.strip()),
        system=headers.get("openstack-system-scope", "").lower() == "all",
    )


class BadTokens(ValueError):
    """A file of tokens that cannot be used; the text says why, and never a token."""


_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]


class _Token(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Either the token itself or, better, its SHA-256 in hexadecimal."""

    token: Annotated[str, msgspec.Meta(min_length=1)] = ""
    sha256: Annotated[str, msgspec.Meta(pattern="^([0-9a-fA-F]{64})?$")] = ""
    user: _Text
    project: _Text
    roles: tuple[_Text, ...]


class _Tokens(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tokens: tuple[_Token, ...]


def digest_of(token: str, encoding: str = "utf-8") -> bytes:
    return hashlib.sha256(token.encode(encoding)).digest()


def from_file(path: Path) -> Authenticate:
    """Tokens of a TOML or JSON file: a list `tokens`, each with token or sha256, user, project and roles."""
    return of_tokens(_read(path))


def of_tokens(tokens: Sequence[tuple[bytes, Identity]]) -> Authenticate:
    """`tokens` are SHA-256 digests and whose they are."""

    def authenticate(headers: Headers) -> Identity | None:
        given = digest_of(headers.get("x-auth-token", ""), "latin-1")
        found = None
        for digest, identity in tokens:  # all of them, whichever it is: how long it takes tells nothing
            if hmac.compare_digest(digest, given):
                found = identity
        return found

    return authenticate


def _read(path: Path) -> list[tuple[bytes, Identity]]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise BadTokens(f"{path}: cannot be read: {getattr(problem, 'strerror', 'not text')}") from None
    try:
        if path.suffix == ".json":
            read = msgspec.json.decode(text, type=_Tokens)
        else:
            read = msgspec.convert(tomllib.loads(text), _Tokens)
    except msgspec.ValidationError as problem:
        raise BadTokens(f"{path}: {problem}") from None
    except (msgspec.DecodeError, tomllib.TOMLDecodeError, RecursionError):
        # what is wrong with it might quote a token
        raise BadTokens(f"{path}: not {'JSON' if path.suffix == '.json' else 'TOML'}") from None
    if not read.tokens:
        raise BadTokens(f"{path}: there is no token in it")
    found = []
    for position, one in enumerate(read.tokens):
        if bool(one.token) == bool(one.sha256):
            raise BadTokens(f"{path}: tokens[{position}]: give it either token or sha256")
        digest = bytes.fromhex(one.sha256) if one.sha256 else digest_of(one.token)
        roles = frozenset(role.lower() for role in one.roles)
        found.append((digest, Identity(one.user, one.project, roles)))
    return found
