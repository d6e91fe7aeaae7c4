"""Signs users of Keystone in to the control room, by a password or by single sign-on."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from urllib.parse import urlencode
from weakref import WeakSet

import httpx

from bus.clock import Clock
from bus.errors import Unavailable
from control_room.kit import AccessRules, BackgroundTasks, Credential, Project, SingleSignOn, Visitor
from features.keystone.settings import KeystoneSettings
from features.keystone.tokens import KeystoneTokens
from placement_worker.http.extension import Identity

log = logging.getLogger(__name__)

VisitorOf = Callable[[Identity | None], Visitor | None]
CHECK_SECONDS = 30.0  # between two checks of the Keystone tokens of open sessions


def sign_in(
    rules: AccessRules,
    settings: KeystoneSettings,
    tokens: KeystoneTokens,
    clock: Clock,
    visitor_of: VisitorOf,
    tasks: BackgroundTasks,
) -> AccessRules:
    """Return the control room's access rules with a sign-in by Keystone; start the checks of sessions."""
    keystone = KeystoneSignIn(tokens, clock, visitor_of)
    tasks.start(keystone.check_sessions())
    return replace(
        rules, sign_in=keystone.sign_in, form="keystone", single_sign_on=keystone.single_sign_on(settings)
    )


class KeystoneSession:
    """A Keystone user's sign-in to the control room, valid until the user's token expires or is revoked."""

    def __init__(self, token: str, identity: Identity | None, clock: Clock, visitor_of: VisitorOf) -> None:
        self.token = token
        self.visitor = visitor_of(identity) if identity and identity.scope == "project" else None
        self._until = identity.until if identity else 0.0
        self._clock = clock

    def __call__(self) -> Visitor | None:
        return self.visitor if self._clock.now() < self._until else None


class KeystoneSignIn:
    """Signs users in with a password or an application credential of Keystone, or by single sign-on.

    The tokens of open sessions are checked every 30 s; a session ends at most 90 s after its token was
    revoked. While Keystone is unreachable, sessions last until their tokens expire.
    """

    def __init__(self, tokens: KeystoneTokens, clock: Clock, visitor_of: VisitorOf) -> None:
        self._tokens = tokens
        self._clock = clock
        self._visitor_of = visitor_of
        self._sessions: WeakSet[KeystoneSession] = WeakSet()

    async def sign_in(self, fields: Mapping[str, str]) -> Credential:
        return await self._session(await self._tokens.sign_in(fields))

    async def sign_in_to_project(self, token: str, project: Project) -> Credential:
        return await self._session(await self._tokens.rescope(token, project.id))

    async def projects(self, token: str) -> list[Project] | None:
        """Return the projects that the user may select; None if the token has expired."""
        found = await self._tokens.projects(token)
        return None if found is None else [Project(p.id, p.name, p.domain_id or "") for p in found]

    def single_sign_on(self, settings: KeystoneSettings) -> SingleSignOn | None:
        """Return the URL and functions for a sign-in by Keystone's WebSSO, or None if the settings name no
        federation protocol.
        """
        if not settings.sso:
            return None
        keystone = httpx.URL(settings.sso_url or self._tokens.url)
        page = f"{str(keystone).rstrip('/').removesuffix('/v3')}/v3/auth/OS-FEDERATION/websso/{settings.sso}"
        return SingleSignOn(
            origin=f"{keystone.scheme}://{keystone.netloc.decode()}",
            address=lambda ours: f"{page}?{urlencode({'origin': ours})}",
            projects=self.projects,
            sign_in=self.sign_in_to_project,
        )

    async def _session(self, token: str | None) -> Credential:
        identity = await self._tokens.identity(token) if token else None
        session = KeystoneSession(token or "", identity, self._clock, self._visitor_of)
        self._sessions.add(session)
        return session

    async def check_sessions(self) -> None:
        """Check the tokens of all sessions periodically; end those whose token Keystone refuses."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            for session in [session for session in self._sessions if session() is not None]:
                try:
                    if await self._tokens.identity(session.token) is None:
                        session.visitor = None
                except Unavailable as problem:
                    log.warning("open sessions are not checked: %s", problem)
                    break
