"""Connects the control room to the users, roles and policy of the Placement API."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from urllib.parse import urlencode
from weakref import WeakSet

import httpx

from berth.placement_http import KNOWN_BY, policy_of, tokens_of
from berth.settings import ControlRoomSettings, Settings
from bus.clock import Clock
from bus.errors import Unavailable
from control_room.access import AccessRules, Credential, Project, SingleSignOn, Visitor
from control_room.shared_data import BackgroundTasks
from placement_worker.http import KeystoneTokens
from placement_worker.http.access import AccessPolicy, Identity, TokenFile, digest_of, noauth2

log = logging.getLogger(__name__)

SHOW, ACT = "berth:control_room:show", "berth:control_room:act"
MOST_NAME = 255  # longest user name, in characters, if there is no token file
VisitorOf = Callable[[Identity | None], Visitor | None]
CHECK_SECONDS = 30.0  # between two checks of the Keystone tokens of open sessions


@asynccontextmanager
async def opened_access(
    settings: Settings, clock: Clock, tasks: BackgroundTasks
) -> AsyncIterator[AccessRules]:
    """Yield the control room's access rules.

    If the settings enable neither a token file nor Keystone, every client may read all pages.
    """
    tokens, rules = tokens_of(settings, clock), policy_of(settings)
    visitor_of = partial(_visitor, rules, KNOWN_BY[settings.placement.auth])

    async def sign_in(fields: Mapping[str, str]) -> Credential:
        token = fields.get("token", "").strip()
        if not isinstance(tokens, TokenFile):
            named = visitor_of(await noauth2({"x-auth-token": token[:MOST_NAME]}))
            return lambda: named
        # the digest, not the token, stays in memory as long as the session
        digest = digest_of(token)
        return lambda: visitor_of(tokens.holder(digest))

    def allows(rule: str, visitor: Visitor | None) -> bool:
        if visitor is None:
            return False
        identity = Identity(visitor.user, visitor.project, visitor.roles)
        return rules.allows(rule, identity, {"project_id": visitor.project})

    rules_of_pages = AccessRules(
        sign_in=sign_in,
        form="token",
        # pages show the whole region, so a role that is limited to projects cannot read them
        may_read=lambda visitor: (
            tokens is None
            or (allows(SHOW, visitor) and visitor is not None and not visitor.operator.projects)
        ),
        may_act=lambda visitor: allows(ACT, visitor),
        names=frozenset(settings.control_room.names),
    )
    if isinstance(tokens, KeystoneTokens):
        async with tokens:
            keystone = KeystoneSignIn(tokens, clock, visitor_of)
            tasks.start(keystone.check_sessions())
            yield replace(
                rules_of_pages,
                sign_in=keystone.sign_in,
                form="keystone",
                single_sign_on=keystone.single_sign_on(settings.control_room),
            )
    else:
        yield rules_of_pages


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
        found = await self._tokens.projects(token)
        return None if found is None else [Project(p.id, p.name, p.domain_id or "") for p in found]

    def single_sign_on(self, settings: ControlRoomSettings) -> SingleSignOn | None:
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
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            for session in [session for session in self._sessions if session() is not None]:
                try:
                    if await self._tokens.identity(session.token) is None:
                        session.visitor = None
                except Unavailable as problem:
                    log.warning("open sessions are not checked: %s", problem)
                    break


def _visitor(rules: AccessPolicy, known_by: str, found: Identity | None) -> Visitor | None:
    """Return the control room's user for an identity; None without an identity or a printable name.
    `known_by`: how the user was identified, such as "keystone", for the audit trail.
    """
    if found is None or not (name := found.name or found.user).isprintable():
        return None
    return Visitor(name, found.project, found.roles, rules.operator(found, known_by))
