"""`berth access client`: manages RabbitMQ users for programs outside berth, each limited to its projects."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, cast, get_args

from berth.kit import (
    ActCli,
    BadSetting,
    BrokerTool,
    BrokerUser,
    Cli,
    Commands,
    Permissions,
    RecordedUsers,
    Settings,
    as_user,
    checked,
    definitions,
    option,
    positional,
    queue_policy,
    undone_on_failure,
    write_secret,
)
from bus.audit_trail import Role
from bus.broker_urls import client_user, vhost_of
from bus.errors import OperationRefused
from bus.masking import printable
from features.clients.broker_permissions import LIMITS, floods, permissions_of
from features.clients.messages import CLIENTS, EDIT_CLIENT, ClientEditRequested, FindClients, RegisteredClient

PASSWORD = "BERTH_CLIENT_PASSWORD"
_LEAST_PASSWORD = 12  # characters
_NO_CONTROLS = re.compile(r"[ -~]+")

commands = Commands(name="client", no_args_is_help=True)

Names = Annotated[list[str] | None, positional("Clients; all, if none is named.", metavar="[NAME]...")]
NameOfClient = Annotated[str, positional("At most 32 letters, digits and -.", metavar="NAME")]


@dataclass(frozen=True)
class ClientOptions:
    project: list[str] | None = option(None, "A project it acts for; may be repeated.", metavar="PROJECT")
    role: str = option("", "Also a role: reader, operator or admin (docs/roles.md).", metavar="ROLE")
    cell: list[str] | None = option(None, "Limit the role to this cell; may be repeated.", metavar="CELL")
    rotate: bool = option(False, "A new password; its connections are closed.")
    password_file: Path | None = option(None, f"Read its password here (default: {PASSWORD}, or a new one).")
    url_file: Path | None = option(None, "Write its URL to this file, mode 0600 (default: print a new one).")
    broker: str = option("", "How it reaches RabbitMQ (default: as we do).", metavar="URL")


def user_of(settings: Settings, client: str) -> str:
    return client_user(client, settings.bus.exchange)


@commands.command("create")
async def add(cli: Cli, name: NameOfClient, options: ClientOptions, *, tool: BrokerTool) -> None:
    """Create a client: a RabbitMQ user that may publish only with its routing key, for the named projects.

    With --role the client is an operator, who may also run the commands; with projects or cells the role is
    limited to them. A new password is printed once, in the URL, or written to --url-file. A repeated `create`
    changes projects and role, and the password only with --rotate. Schedulers apply them immediately.
    """
    _need_service_mode(cli.settings)
    order = _ordered(name, options)
    settings, file, rotate = cli.settings, options.url_file, options.rotate
    given = given_password(options.password_file)
    user = user_of(settings, name)
    if file is not None and not file.parent.is_dir():
        raise BadSetting(f"--url-file {file}: there is no such directory")
    admin = await tool.users(cli)
    is_new = user not in await admin.users()
    async with cli.bus("client") as bus:
        found = (await bus.asker(CLIENTS)(FindClients(names=(name,)))).clients
        if not is_new and not found and not rotate:
            unknown = f"RabbitMQ user {user} exists and is of no registered client"
            raise OperationRefused(f"{unknown}: --rotate gives it a new password")
        has_new_password = is_new or rotate or bool(given)
        if file is not None and not has_new_password:
            raise OperationRefused("its password is not known here: --rotate makes a new one for --url-file")
        password = (given or secrets.token_urlsafe(24)) if has_new_password else ""
        url = as_user(options.broker or settings.bus.amqp_url, user, password)
        users = {user: BrokerUser(password, _permissions(settings, name, order.role), LIMITS)}
        edit = bus.asker(EDIT_CLIENT)
        async with undone_on_failure() as undo:
            before = _edit_to(found[0] if found else RegisteredClient(name=name, projects=()))
            undo(f"the projects of client {name}", partial(edit, before))
            await edit(order)
            if file is not None:
                write_secret(file, f"{url}\n")
            if is_new:
                undo(f"RabbitMQ user {user}", partial(_drop, admin, user))
            elif rotate:
                await _drop(admin, user)  # this closes connections with the old password
            await admin.take(_definitions(settings, users))
    lines = [f"client {name}: RabbitMQ user {user}, by {admin.by}; {_rights(order)}"]
    shown = url if has_new_password and not given and file is None else ""
    lines += [f"its URL, which is not shown again: {shown}"] if shown else []
    lines += [f"its URL is in {file}"] if file is not None else []
    facts = {"projects": order.projects, "role": order.role, "cells": order.cells}
    where = {"url": shown, "file": str(file or "")}
    cli.tell("\n".join(map(printable, lines)), client=name, user=user, **facts, **where)


@commands.command("permit")
async def permit(cli: Cli, names: Names = None, *, tool: BrokerTool) -> None:
    """Give clients (all, or those named) the RabbitMQ permissions of this version of berth."""
    _need_service_mode(cli.settings)
    admin = await tool.users(cli)
    async with cli.bus("client") as bus:
        found = (await bus.asker(CLIENTS)(FindClients(names=tuple(names or ())))).clients
    if unknown := set(names or ()) - {client.name for client in found}:
        raise OperationRefused(f"client {min(unknown)} is not registered")
    users = {
        user_of(cli.settings, client.name): BrokerUser(
            "", _permissions(cli.settings, client.name, client.role), LIMITS
        )
        for client in found
    }
    if users:
        await admin.take(_definitions(cli.settings, users))
    sentence = f"{len(found)} clients have the permissions of this version, by {admin.by}"
    cli.tell(sentence, clients=[client.name for client in found])


@commands.command("show")
async def show_command(cli: Cli, name: NameOfClient) -> None:
    """Show the projects that an API client may act for, its RabbitMQ user and the user's permissions."""
    _need_service_mode(cli.settings)
    async with cli.bus("client") as bus:
        found = (await bus.asker(CLIENTS)(FindClients(names=(name,)))).clients
    if not found:
        raise OperationRefused(f"client {name} is not registered")
    [client], user = found, user_of(cli.settings, name)
    may = _permissions(cli.settings, name, client.role)
    facts = {"projects": client.projects, "role": client.role, "cells": client.cells}
    lines = (
        f"client {name}: RabbitMQ user {user}; {_rights(_edit_to(client))}",
        f"declares and reads queues {may.configure}",
        f"publishes with keys       {may.keys[0].write}",
        f"to the exchange           {may.keys[0].exchange}",
        f"binds its queues by keys  {may.keys[1].read}",
        f"to the exchange           {may.keys[1].exchange}",
    )
    cli.tell("\n".join(map(printable, lines)), client=name, user=user, **facts)


def _ordered(name: str, options: ClientOptions) -> ClientEditRequested:
    if options.role not in get_args(Role):
        raise BadSetting(f"--role {options.role!r}: a role is reader, operator or admin")
    projects, cells = dict.fromkeys(options.project or ()), dict.fromkeys(options.cell or ())
    if not options.role and (cells or not projects):
        raise BadSetting("a client takes a --project, or a --role, which --cell and --project limit")
    if options.role == "admin" and (cells or projects):
        raise BadSetting("--role admin: it is for the whole region, without --cell and --project")
    role = cast(Role, options.role)
    order = ClientEditRequested(client=name, projects=tuple(projects), role=role, cells=tuple(cells))
    return checked(order)


def _edit_to(client: RegisteredClient) -> ClientEditRequested:
    return ClientEditRequested(
        client=client.name, projects=client.projects, role=client.role, cells=client.cells
    )


def _rights(client: ClientEditRequested) -> str:
    parts = [f"role {client.role}"] if client.role else []
    parts += [f"cells {', '.join(client.cells)}"] if client.cells else []
    parts += [f"projects {', '.join(client.projects)}"] if client.projects else []
    return ", ".join(parts)


@commands.command("delete")
async def remove(cli: ActCli, name: NameOfClient, *, tool: BrokerTool) -> None:
    """Remove an API client: its requests are refused immediately, its connections closed, its queues deleted.

    The builds of its projects are not changed.
    """
    _need_service_mode(cli.settings)
    order, user = checked(ClientEditRequested(client=name)), user_of(cli.settings, name)
    admin = await tool.users(cli)
    async with cli.bus("client") as bus:
        if cli.dry_run:
            found = (await bus.asker(CLIENTS)(FindClients(names=(name,)))).clients
            before = found[0] if found else None
            await bus.rehearse(order)
        else:
            before = (await bus.asker(EDIT_CLIENT)(order)).before
        had_user = user in await admin.users()
        await _drop(admin, user)
    if before is None and not had_user:
        raise OperationRefused(f"client {name} is not registered, and has no RabbitMQ user")
    may = permissions_of(name, cli.settings.bus.exchange, has_role=True)
    if cli.dry_run:
        queues = len(await admin.queues_like(may.configure))
    else:
        queues = await admin.delete_queues(may.configure)
    sentence = f"client {name} {cli.is_now('removed')}: RabbitMQ user {user}, by {admin.by}; {queues} queues"
    cli.tell(sentence, client=name, user=user, removed=True, queues=queues)


def _permissions(settings: Settings, name: str, role: Role) -> Permissions:
    return permissions_of(name, settings.bus.exchange, has_role=bool(role))


def _definitions(settings: Settings, users: Mapping[str, BrokerUser]) -> dict[str, Any]:
    return definitions(users, floods(settings.bus.exchange), vhost_of(settings.bus.amqp_url))


def _need_service_mode(settings: Settings) -> None:
    if settings.embedded:
        raise OperationRefused(
            "an embedded berth has no RabbitMQ and so no clients: every program of this machine's user may"
            " use it without limits; with amqp_url each client has a RabbitMQ user"
        )


def given_password(file: Path | None) -> str:
    """Return the password from the file or the environment; raise BadSetting if it cannot be read."""
    where = f"--password-file {file}" if file else PASSWORD
    try:
        password = file.read_text(encoding="utf-8").strip() if file else os.environ.get(PASSWORD, "")
    except UnicodeDecodeError:
        raise BadSetting(f"{where}: not UTF-8") from None
    if (file or password) and (len(password) < _LEAST_PASSWORD or not _NO_CONTROLS.fullmatch(password)):
        raise BadSetting(f"{where}: a password has at least {_LEAST_PASSWORD} printable ASCII characters")
    return password


async def _drop(admin: RecordedUsers, user: str) -> None:
    await admin.drop(user, queue_policy(user))
