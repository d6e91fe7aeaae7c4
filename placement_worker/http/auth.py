"""Authentication: `noauth2` trusts the caller, for development; token files verify it."""

import hashlib
import hmac
import logging
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import msgspec

log = logging.getLogger(__name__)

Headers = Mapping[str, str]


class Identity(msgspec.Struct, frozen=True):
    user: str
    project: str
    roles: frozenset[str]
    system: bool = False  # its token is for the whole system rather than for a project


Authenticate = Callable[[Headers], Identity | None]  # None: unknown


def noauth2(headers: Headers) -> Identity | None:
    """Read the identity from the token, USER or USER:PROJECT; `admin` is the administrator."""
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
    """A token file cannot be used; the text says why, without any token."""


_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]


class _Token(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An entry of a token file: the token itself or, better, its SHA-256 in hexadecimal."""

    token: Annotated[str, msgspec.Meta(min_length=1)] = ""
    sha256: Annotated[str, msgspec.Meta(pattern="^([0-9a-fA-F]{64})?$")] = ""
    user: _Text
    project: _Text
    roles: tuple[_Text, ...]


class _Tokens(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tokens: tuple[_Token, ...]


def digest_of(token: str, encoding: str = "utf-8") -> bytes:
    return hashlib.sha256(token.encode(encoding)).digest()


class TokenFile:
    """Tokens of a TOML or JSON file: a list `tokens`, each with token or sha256, user, project and roles.

    A changed file is read again. If it cannot be read, the previous tokens stay valid.
    """

    def __init__(self, path: Path) -> None:
        """Raise BadTokens if the file cannot be used."""
        self._path = path
        self._stamp = self._stat()
        self._tokens = _read(path)

    def __call__(self, headers: Headers) -> Identity | None:
        return self.holder(_given(headers))

    def holder(self, digest: bytes) -> Identity | None:
        """Return the identity of a token by the token's SHA-256, or None if it is not in the file."""
        if (stamp := self._stat()) != self._stamp:
            self._stamp = stamp
            try:
                self._tokens = _read(self._path)
            except BadTokens as problem:
                log.error("the tokens stay as they were: %s", problem)
        return _holder(self._tokens, digest)

    def _stat(self) -> tuple[int, ...]:
        try:
            found = self._path.stat()
        except OSError:
            return ()
        return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino


def of_tokens(tokens: Sequence[tuple[bytes, Identity]]) -> Authenticate:
    """Return an authenticator for SHA-256 digests of tokens with their identities."""

    def authenticate(headers: Headers) -> Identity | None:
        return _holder(tokens, _given(headers))

    return authenticate


def _given(headers: Headers) -> bytes:
    return digest_of(headers.get("x-auth-token", ""), "latin-1")


def _holder(tokens: Sequence[tuple[bytes, Identity]], given: bytes) -> Identity | None:
    found = None
    for digest, identity in tokens:  # every token is compared: the time taken must not depend on the token
        if hmac.compare_digest(digest, given):
            found = identity
    return found


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
    for position, token in enumerate(read.tokens):
        if bool(token.token) == bool(token.sha256):
            raise BadTokens(f"{path}: tokens[{position}]: give it either token or sha256")
        digest = bytes.fromhex(token.sha256) if token.sha256 else digest_of(token.token)
        roles = frozenset(role.lower() for role in token.roles)
        found.append((digest, Identity(token.user, token.project, roles)))
    return found
