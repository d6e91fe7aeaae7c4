"""Connects the control room to the users, roles and policy of the Placement API."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial

from berth.kit.feature_parts import authentication
from berth.placement_http import known_by, policy_of, tokens_of
from berth.settings import Settings
from bus.clock import Clock
from control_room.kit.access import AccessRules, Credential, Visitor
from control_room.kit.shared_data import BackgroundTasks
from placement_worker.http.access import AccessPolicy, Identity, TokenFile, UncheckedTokens, digest_of

SHOW, ACT = "berth:control_room:show", "berth:control_room:act"
MOST_NAME = 255  # longest user name, in characters, if there is no token file


@asynccontextmanager
async def opened_access(
    settings: Settings, clock: Clock, tasks: BackgroundTasks
) -> AsyncIterator[AccessRules]:
    """Yield the control room's access rules.

    If the settings enable no authentication, every client may read all pages.
    """
    tokens, rules = tokens_of(settings, clock), policy_of(settings)
    visitor_of = partial(_visitor, rules, known_by(settings))

    async def sign_in(fields: Mapping[str, str]) -> Credential:
        token = fields.get("token", "").strip()
        if not isinstance(tokens, TokenFile):
            named = visitor_of(await tokens.identity(token[:MOST_NAME]))
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
        form="name" if isinstance(tokens, UncheckedTokens) else "token",
        # pages show the whole region, so a role that is limited to projects cannot read them
        may_read=lambda visitor: (
            isinstance(tokens, UncheckedTokens)
            or (allows(SHOW, visitor) and visitor is not None and not visitor.operator.projects)
        ),
        may_act=lambda visitor: allows(ACT, visitor),
        names=frozenset(settings.control_room.names),
    )
    method = authentication(settings.placement.auth)
    async with tokens:
        if method is None:
            yield rules_of_pages
        else:
            yield method.sign_in(rules_of_pages, settings, tokens, clock, visitor_of, tasks)


def _visitor(rules: AccessPolicy, known_by: str, found: Identity | None) -> Visitor | None:
    """Return the control room's user for an identity; None without an identity or a printable name.
    `known_by`: how the user was identified, such as "keystone", for the audit trail.
    """
    if found is None or not (name := found.name or found.user).isprintable():
        return None
    return Visitor(name, found.project, found.roles, rules.operator(found, known_by))
