"""Authenticates requests by Keystone tokens; asks Keystone about each token at most once a minute."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Self

import httpx
import msgspec

from bus.clock import Clock
from bus.errors import NOT_JSON
from bus.http import CLIENT_ADDRESS
from ironic_sync.extension import Access, KeystoneRefused, KeystoneUnavailable
from placement_worker.http.extension import Headers, Identity, Scope, TokenChecker, digest_of, errors

log = logging.getLogger(__name__)

KNOWN_SECONDS = 60.0  # how long Keystone's answer about a valid token is cached
UNKNOWN_SECONDS = 5.0  # how long it is cached that a token is invalid
MOST_TOKENS = 10_000  # maximum number of cached answers; the oldest is dropped
GUESSES, GUESSES_SECONDS = 60, 60.0  # unknown tokens from one address within a time
PATIENCE = 30.0  # maximum time in seconds for which a request waits for Keystone
CONNECTIONS = 32
SERVICE_ROLE = "service"  # a service token with this role makes an expired token of a user acceptable

_NOT_ASKED: tuple[Identity | None, float] = (None, 0.0)
_AWAY = "The Keystone service is temporarily unavailable."


class _Named(msgspec.Struct, frozen=True):
    id: str
    name: str = ""


class _Token(msgspec.Struct, frozen=True, kw_only=True):
    user: _Named
    expires_at: datetime
    project: _Named | None = None
    domain: _Named | None = None
    system: dict[str, bool] = {}
    roles: tuple[_Named, ...] = ()

    @property
    def _scope(self) -> Scope:
        if self.project:
            return "project"
        return "system" if self.system else "domain" if self.domain else "none"

    @property
    def identity(self) -> Identity:
        return Identity(
            user=self.user.id,
            project=self.project.id if self.project else "",
            roles=frozenset(role.name.lower() for role in self.roles),
            scope=self._scope,
            name=self.user.name,
            until=self.expires_at.timestamp(),
        )


_Key = tuple[bytes, bool]  # hash of a token, and whether it may be expired


class Guesses:
    """Counts unknown tokens by the address from which they came; after GUESSES within GUESSES_SECONDS, tokens
    that are not cached are refused without a request to Keystone, until the time has passed.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._counts: OrderedDict[str, tuple[int, float]] = OrderedDict()  # address → count, since when

    def check(self, address: str) -> None:
        """Raise KeystoneUnavailable if the address has sent too many unknown tokens."""
        count, since = self._counts.get(address, (0, 0.0))
        if count >= GUESSES and self._clock.monotonic() - since < GUESSES_SECONDS:
            raise KeystoneUnavailable(f"{address} has sent {count} unknown tokens")

    def add(self, address: str) -> None:
        """Count an unknown token of the address."""
        now = self._clock.monotonic()
        count, since = self._counts.pop(address, (0, now))
        if now - since >= GUESSES_SECONDS:
            count, since = 0, now
        self._counts[address] = count + 1, since
        if len(self._counts) > MOST_TOKENS:
            self._counts.popitem(last=False)


class KeystoneProject(msgspec.Struct, frozen=True):
    """A project on which a user has a role."""

    id: str
    name: str
    domain_id: str | None = None
    enabled: bool = True


class _Projects(msgspec.Struct, frozen=True):
    projects: tuple[KeystoneProject, ...]


class _Answer(msgspec.Struct, frozen=True):
    token: _Token


_decode = msgspec.json.Decoder(_Answer).decode
_decode_projects = msgspec.json.Decoder(_Projects).decode


class Unauthorized(errors.Problem):
    """The refusal (401) of a request without a valid token, in the format that Keystone's clients expect."""

    def __init__(self, url: str) -> None:
        super().__init__(401, headers={"www-authenticate": f'Keystone uri="{url}"'})

    def rendered(self, accept: str, request_id: str, minor: int) -> tuple[str, bytes]:
        why = "The request you have made requires authentication."
        error = {"code": self.status, "title": self.title, "message": why}
        return f"{errors.JSON}; charset=UTF-8", msgspec.json.encode({"error": error})


class KeystoneTokens(TokenChecker):
    """Finds the identities of Keystone tokens. Use it with `async with`.

    Answers are cached under a hash of the token for a minute, but not longer than the token is valid. If
    Keystone does not answer, `KeystoneUnavailable` is raised: no request is accepted unchecked.
    """

    def __init__(
        self, access: Access, clock: Clock | None = None, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self.url = access.keystone_url
        self._access = access
        self._clock = clock or Clock()
        self._transport = transport  # given by tests; by default TCP
        self._client: httpx.AsyncClient | None = None
        # token → identity (None: invalid token), monotonic time until which it is cached
        self._kept: OrderedDict[_Key, tuple[Identity | None, float]] = OrderedDict()
        self._asking: dict[_Key, asyncio.Event] = {}
        self._guesses = Guesses(self._clock)

    async def __aenter__(self) -> Self:
        self._client = self._access.keystone_client(
            timeout=PATIENCE, connections=CONNECTIONS, transport=self._transport
        )
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._client is not None:
            await self._client.aclose()

    async def sign_in(self, fields: Mapping[str, str]) -> str | None:
        """Return a new Keystone token for the credentials in a sign-in form, or None if Keystone refuses."""
        response = await self._of_user("POST", "/auth/tokens", json={"auth": _credentials(fields)})
        return str(response.headers["X-Subject-Token"]) if response else None

    async def projects(self, token: str) -> tuple[KeystoneProject, ...] | None:
        """Return the enabled projects of the user of a token, or None if Keystone refuses the token."""
        if not _may_be_token(token):
            return None
        response = await self._of_user("GET", "/auth/projects", headers={"X-Auth-Token": token})
        if response is None:
            return None
        try:
            projects = _decode_projects(response.content).projects
        except NOT_JSON as problem:
            raise self._no_sign_in(str(problem)) from None
        return tuple(project for project in projects if project.enabled)

    async def rescope(self, token: str, project: str) -> str | None:
        """Return a new Keystone token of the same user for a project (an id), or None if refused."""
        identity = {"methods": ["token"], "token": {"id": token}}
        body = {"auth": {"identity": identity, "scope": {"project": {"id": project}}}}
        response = await self._of_user("POST", "/auth/tokens", json=body)
        return str(response.headers["X-Subject-Token"]) if response else None

    async def _of_user(self, method: str, path: str, **more: Any) -> httpx.Response | None:
        """Send a request with a user's, not berth's, credentials; return None if Keystone refuses them."""
        assert self._client is not None, "use it with `async with`"
        try:
            response = await self._client.request(
                method, self.url + path, auth=lambda request: request, **more
            )
        except (httpx.RequestError, OSError) as problem:
            raise self._no_sign_in(str(problem) or type(problem).__name__) from None
        if response.is_success:
            return response
        if response.status_code in (400, 401, 403, 404):
            return None
        raise self._no_sign_in(f"it answered {response.status_code}")

    def _no_sign_in(self, why: str) -> KeystoneUnavailable:
        log.warning("Keystone at %s: no user can sign in: %s", self.url, why)
        return KeystoneUnavailable(_AWAY)

    async def check(self) -> None:
        """Raise KeystoneUnavailable, with the reason, if berth's own Keystone user cannot validate tokens."""
        try:
            async with asyncio.timeout(PATIENCE):
                await self._validate("a-token-that-does-not-exist", expired=False)
        except TimeoutError:
            raise KeystoneUnavailable(f"no answer within {PATIENCE:g} s") from None

    def unauthorized(self) -> errors.Problem:
        return Unauthorized(self.url)

    async def __call__(self, headers: Headers) -> Identity | None:
        """Return the identity of a request; None without a valid token, or with an invalid service token.

        With a valid service token, an expired token of a user is accepted.
        """
        service_token, expired = headers.get("x-service-token", "").strip(), False
        if service_token:
            service = await self.identity(service_token)
            if service is None:
                return None
            expired = SERVICE_ROLE in service.roles
        token = headers.get("x-auth-token", "").strip()
        return await self.identity(token, expired=expired) if token else None

    async def identity(self, token: str, *, expired: bool = False) -> Identity | None:
        """Return the identity of a token, or None if it is invalid; `expired` accepts expired tokens too."""
        key = digest_of(token, "latin-1"), expired
        identity, until = self._kept.get(key, _NOT_ASKED)
        if self._clock.monotonic() < until:  # the usual case, which needs no timeout
            return identity
        try:
            async with asyncio.timeout(PATIENCE):
                while (asking := self._asking.get(key)) is not None:
                    await asking.wait()  # another request is validating this token
                    identity, until = self._kept.get(key, _NOT_ASKED)
                    if self._clock.monotonic() < until:
                        return identity
                return await self._ask(key, token, expired)
        except (KeystoneUnavailable, TimeoutError) as problem:
            why = str(problem) or f"no answer within {PATIENCE:g} s"
            log.warning("a token cannot be checked: %s", why)
            raise KeystoneUnavailable(_AWAY) from None

    async def _ask(self, key: _Key, token: str, expired: bool) -> Identity | None:
        address = CLIENT_ADDRESS.get()
        self._guesses.check(address)
        asking = self._asking[key] = asyncio.Event()
        try:
            identity, seconds = await self._validate(token, expired), UNKNOWN_SECONDS
            if identity is not None:
                left = identity.until - self._clock.now()
                seconds = min(KNOWN_SECONDS, left)
                if left <= 0 and not expired:
                    identity = None
            else:
                self._guesses.add(address)
            self._kept.pop(key, None)
            self._kept[key] = identity, self._clock.monotonic() + seconds
            if len(self._kept) > MOST_TOKENS:
                self._kept.popitem(last=False)
            return identity
        finally:
            del self._asking[key]
            asking.set()

    async def _validate(self, token: str, expired: bool) -> Identity | None:
        """Ask Keystone to validate a token; return its identity, or None if Keystone does not know it."""
        assert self._client is not None, "use it with `async with`"
        if not _may_be_token(token):
            return None
        address = f"{self.url}/auth/tokens?nocatalog{'&allow_expired=1' if expired else ''}"
        try:
            response = await self._client.get(address, headers={"X-Subject-Token": token})
            if response.status_code == 404:
                return None
            if response.is_success:
                return _decode(response.content).token.identity
            why = f"it answered {response.status_code}"
        except KeystoneRefused as refused:  # Keystone refuses berth's own credentials
            why = f"{refused}: see placement_cloud"
        except (httpx.RequestError, OSError, *NOT_JSON) as problem:
            why = str(problem) or type(problem).__name__
        raise KeystoneUnavailable(f"Keystone at {self.url}: {why}")


def _may_be_token(token: str) -> bool:
    return token.isascii() and token.isprintable() and bool(token)


def _credentials(fields: Mapping[str, str]) -> dict[str, Any]:
    """Return the body of Keystone's sign-in request for the fields of a sign-in form."""
    if id_ := fields.get("application_credential"):
        credential = {"id": id_, "secret": fields.get("secret", "")}
        return {"identity": {"methods": ["application_credential"], "application_credential": credential}}
    domain = {"name": fields.get("domain") or "Default"}
    user = {"name": fields.get("user", ""), "domain": domain, "password": fields.get("password", "")}
    project = {"name": fields.get("project", ""), "domain": domain}
    return {"identity": {"methods": ["password"], "password": {"user": user}}, "scope": {"project": project}}
