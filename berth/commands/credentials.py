"""`berth access list`: lists every credential with its role, its age and the command that revokes it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from berth.commands.tokens import id_of, tokens_in
from berth.features import added
from berth.kit.broker_users import BrokerTool
from berth.kit.command_groups import Commands
from berth.kit.credentials import Credential, CredentialsPart
from berth.kit.feature_parts import authentication
from berth.kit.listing import ListCli, plain_table
from berth.kit.options import option
from berth.kit.terminal import Cli, note
from berth.kit.timeline import acts_found
from berth.settings import Settings
from bus.audit_trail import ActRecord, FindActs
from bus.broker_urls import user_of as user_in
from bus.clock import time_text
from bus.errors import BrokerRefused, Unavailable, Unroutable

TOKEN = "token"

commands = Commands()


@commands.command("list")
async def credentials_command(
    cli: ListCli,
    kind: str = option("", "Only of this kind, such as token or agent.", metavar="KIND"),
    *,
    tool: BrokerTool,
) -> int:
    """List who may do what here: tokens, clients, cells, agents and other RabbitMQ users, never a secret.

    Each is listed with its role and limits (docs/roles.md), the time of its secret, and the command that
    revokes it; `-o wide` adds its id. Users of other systems are not listed. Exit code 1: RabbitMQ or
    placement does not answer, and only tokens are listed.
    """
    settings, found = cli.settings, list[Credential]()
    method = authentication(auth := settings.placement.auth)
    if method is not None:
        note(f"placement_auth = {auth}: {method.note}")
    elif auth == "noauth2":
        note(f"placement_auth = {auth}: the Placement API accepts any user name, and admin as an admin")
    if settings.placement.tokens and method is None:
        found += token_credentials(settings)
    status = 0
    if not settings.embedded and kind != TOKEN:
        try:
            found += await _in_broker(cli, tool)
        except (Unavailable, Unroutable) as problem:
            note(f"only tokens are listed, because berth does not answer: {problem}")
            status = 1
    found = [each for each in found if kind in ("", each.kind)]
    rows = [
        (each.kind, each.name, *_rights(each), time_text(each.since), each.revoke, each.id) for each in found
    ]
    titles = ("kind", "name", "role", "cells", "projects", "since (UTC)", "revoke with", "id")
    table = plain_table(titles, rows, folded=titles[3:5], wide=("id",))
    cli.rows(found, table if found else "no credentials")
    return status


async def _in_broker(cli: Cli, tool: BrokerTool) -> Iterator[Credential]:
    settings = cli.settings
    async with cli.bus("credentials") as bus:
        of_features = [
            each
            for part in added(CredentialsPart, "credentials")
            for each in await part.listed(bus, settings)
        ]
        since = made_at([record async for record in acts_found(bus, FindActs(act="credential"))])
    try:
        users = await (await tool.users(cli)).users()
    except (Unavailable, BrokerRefused) as problem:
        note(f"of RabbitMQ users, only those that features have recorded are listed: {problem}")
        users = {credential.id for credential in of_features}
    return broker_credentials(settings, users, of_features, since)


def _rights(credential: Credential) -> tuple[str, str, str]:
    role = credential.role or ", ".join(credential.roles) or "-"
    return role, ", ".join(credential.cells), ", ".join(credential.projects)


def token_credentials(settings: Settings) -> Iterator[Credential]:
    """Yield the credentials of the token file, each with the role that `placement_policy` gives it."""
    from berth.placement_http import policy_of  # loads slowly
    from placement_worker.http.access import identity_of

    policy = policy_of(settings)
    for token in tokens_in(Path(settings.placement.tokens)):
        yield Credential(
            kind=TOKEN,
            name=token.user,
            id=id_of(token),
            role=policy.operator(identity_of(token), "token file").role,
            roles=token.roles,
            cells=token.cells,
            projects=token.projects,
            since=token.since.timestamp() if token.since else 0.0,
            revoke=f"berth access token delete {id_of(token)}",
        )


def made_at(records: Sequence[ActRecord]) -> dict[str, float]:
    """Return when each RabbitMQ user got its password, by user name. `records`: from the audit trail, the
    latest first.
    """
    found: dict[str, float] = {}
    for record in records:
        if record.outcome == "done" and "password" in record.asked:
            for user in record.target.split(", "):
                found.setdefault(user, record.at)
    return found


def broker_credentials(
    settings: Settings, users: Collection[str], of_features: Sequence[Credential], since: Mapping[str, float]
) -> Iterator[Credential]:
    """Yield a credential for each RabbitMQ user in `users`, sorted by name: the user of a cell, ferry or
    agent, of a feature (`of_features`), of berth itself, or of an unknown program. `since`: when users got
    their passwords.
    """
    known = {credential.id: credential for credential in of_features}
    of_cell = re.compile(rf"{re.escape(settings.bus.exchange)}-([\w-]+)(?:\.(ferry)|\.agent\.([\w-]+))?")
    for user in sorted(users):
        at = since.get(user, 0.0)
        if (credential := known.get(user)) is not None:
            yield msgspec.structs.replace(credential, since=at)
        elif cell := of_cell.fullmatch(user):
            name, ferry, agent = cell.groups()
            kind = "agent" if agent else "ferry" if ferry else "cell"
            by = f"berth cell agent delete {name} {agent}" if agent else f"berth cell delete {name}"
            yield Credential(kind=kind, name=agent or name, id=user, cells=(name,), since=at, revoke=by)
        else:
            is_ours = user == (user_in(settings.bus.amqp_url) or "guest")
            yield Credential(
                kind="berth itself" if is_ours else "RabbitMQ user", name=user, id=user,
                role="admin" if is_ours else "", since=at, revoke=f"rabbitmqctl delete_user {user}",
            )  # fmt: skip
