"""The method of authentication keystone: its settings, its tokens, and what depends on them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from berth.kit import AuthenticationPart, Finding, Settings, is_loopback
from bus.clock import Clock
from bus.errors import Unavailable
from features.keystone.settings import KeystoneSettings

if TYPE_CHECKING:
    from control_room.kit import AccessRules, BackgroundTasks, Visitor
    from features.keystone.tokens import KeystoneTokens
    from placement_worker.http.extension import Identity

# Keystone gives the role reader to each user of a project, also to users of tenants.
RULES = {"berth:reader": "role:service or rule:berth:operator"}
NOTE = "users and roles are in Keystone: `openstack role assignment list --names`"


def check(settings: Settings, refuse: Callable[[str, str], None]) -> None:
    """Refuse settings of Keystone that contradict each other."""
    keystone = settings.of(KeystoneSettings)
    protocol, url = keystone.sso, keystone.sso_url
    if url and not protocol:
        refuse("control_room_sso_url", "name the protocol of single sign-on in control_room_sso")
    if not protocol:
        return
    if not re.fullmatch(r"[\w-]+", protocol, re.ASCII):
        refuse("control_room_sso", "takes the id of a federation protocol at Keystone, as in openid")
    if url and not _is_safe_url(url):
        refuse("control_room_sso_url", "takes a URL with https, as in https://keystone.example.com/v3")
    if settings.placement.auth != "keystone":
        refuse("control_room_sso", "single sign-on needs placement_auth = keystone")


def _is_safe_url(url: str) -> bool:
    """Return whether a URL uses HTTPS, or uses plain HTTP to a server on this machine."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port  # reading an invalid port raises
    except ValueError:
        return False
    return bool(host) and (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host or "")))


def tokens(settings: Settings, clock: Clock) -> KeystoneTokens:
    """Return the checker of tokens at the configured Keystone."""
    from features.keystone.tokens import KeystoneTokens
    from ironic_sync.extension import cloud_access  # imports an HTTP client, which loads slowly

    return KeystoneTokens(cloud_access(settings.of(KeystoneSettings).cloud), clock)


def sign_in(
    rules: AccessRules,
    settings: Settings,
    tokens: KeystoneTokens,
    clock: Clock,
    visitor_of: Callable[[Identity | None], Visitor | None],
    tasks: BackgroundTasks,
) -> AccessRules:
    from features.keystone.sign_in import sign_in  # imports an HTTP client, which loads slowly

    return sign_in(rules, settings.of(KeystoneSettings), tokens, clock, visitor_of, tasks)


async def finding(settings: Settings, clock: Clock) -> Finding:
    async with tokens(settings, clock) as keystone:
        try:
            await keystone.check()
        except Unavailable as problem:
            do = "See that it runs, and that the user of placement_cloud has the role service or admin."
            why = " ".join(str(problem).split()).removesuffix(".")
            return Finding("broken", "Keystone", f"No token can be checked: {why}.", do)
    return Finding("fine", "Keystone", f"It checks tokens at {keystone.url}.")


PART = AuthenticationPart(
    tokens=tokens, rules=RULES, check=check, sign_in=sign_in, finding=finding, note=NOTE
)
