"""The tokens of a token file, which identify the users of the Placement API and the control room."""

import hashlib
import hmac
import logging
import tomllib
from datetime import datetime
from pathlib import Path
from typing import Annotated

import msgspec

from placement_worker.http.access import Headers, Identity, read_text

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
    since: datetime | None = None  # when `berth token` made the token


class StoredTokens(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tokens: tuple[StoredToken, ...]


def digest_of(token: str, encoding: str = "utf-8") -> bytes:
    return hashlib.sha256(token.encode(encoding)).digest()


class TokenFile:
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
    roles = frozenset(role.lower() for role in token.roles)
    return Identity(token.user, token.project, roles, cells=token.cells, projects=token.projects)
