"""`berth cell create`: creates a cell's RabbitMQ user, database and settings file, and registers the cell."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from msgspec import structs

from berth.broker_permissions import flood_policy
from berth.cell_file import CellFile, password_of, read_cell_file, write_cell_file
from berth.commands.cell_permissions import (
    NameOfCell,
    check_agent,
    check_identifiers,
    database_of,
    definitions_of,
    edit_of,
    limits_of,
    login_of,
    need_service_mode,
    permissions_of,
    user_of,
)
from berth.kit.broker_permissions import BrokerUser, queue_policy
from berth.kit.broker_users import BrokerTool, RecordedUsers
from berth.kit.command_groups import Commands
from berth.kit.options import option
from berth.kit.publishing import repeated_until_answered
from berth.kit.secret_files import as_user
from berth.kit.terminal import Cli, complain, write_json
from berth.kit.undoing import Undo, undone_on_failure
from berth.settings import Settings
from bus import topics
from bus.cells import CellEdited, RegisterCell
from bus.delivery.runner import Bus
from bus.errors import OperationRefused, Unavailable, Unroutable
from bus.resources import FindProviders

PLACEMENT_SECONDS = 10.0  # time limit for placement to read the queues of a new cell


commands = Commands()


@dataclass(frozen=True)
class CellOptions:
    file: Path | None = option(None, "Where its settings go (default: CELL.toml).", dir_okay=False)
    note: str | None = option(None, "A note for operators.")
    disabled: bool = option(False, "Closed to instances, to begin with.")
    rotate: bool = option(False, "New passwords; its workers are restarted with the new file.")
    broker: str = option("", "How its workers reach RabbitMQ (default: as we do).", metavar="URL")
    database: str = option("", "How they reach PostgreSQL (default: as we do).", metavar="URL")
    with_agent: list[str] | None = option(
        None, "An agent that shares the cell's user; may be repeated.", metavar="AGENT"
    )


@commands.command("create")
async def add_command(cli: Cli, name: NameOfCell, options: CellOptions, *, tool: BrokerTool) -> int:
    """Create a cell: a RabbitMQ user with its conductor's permissions, a PostgreSQL login with a database,
    limits for both (settings cell_*), a settings file with their passwords (mode 0600), and its registration.

    The command needs users that may create users: those of amqp_url and database_url, or of the options.
    Placement then reads the cell's queues without a restart. Afterwards, on the cell's machine:

        berth --config CELL.toml run conductor --cell CELL

    `berth cell agent create CELL AGENT` creates a user for each agent. A repeated command applies changed
    settings and options, and keeps the passwords in the file unless --rotate is given. No password is
    printed or logged; servers get hashes. If a step fails, everything that this run created is deleted.
    """
    need_service_mode(cli.settings, "add")
    return await add(cli, NewCell(cli.settings, name, options), tool)


@dataclass(frozen=True)
class NewCell:
    """A cell to be made, with the names of its file, RabbitMQ user and database login."""

    settings: Settings
    name: str
    options: CellOptions

    @property
    def file(self) -> Path:
        return self.options.file or Path(f"{self.name}.toml")

    @property
    def user(self) -> str:
        return user_of(self.settings, self.name)

    @property
    def login(self) -> str:
        return login_of(self.settings, self.name)


async def add(cli: Cli, new_cell: NewCell, tool: BrokerTool) -> int:
    """Make a cell: settings file, database, RabbitMQ user and registration. If a step fails, the earlier ones
    are undone.
    """
    settings, options, agents = new_cell.settings, new_cell.options, new_cell.options.with_agent or ()
    check_identifiers(settings, new_cell.name)
    for agent in agents:
        check_agent(agent)
    enabled = False if options.disabled else None
    edit = edit_of(RegisterCell(cell=new_cell.name, enabled=enabled, note=options.note))
    admin = await tool.users(cli)
    known = read_cell_file(new_cell.file, new_cell.name)
    password = await broker_password(new_cell.user, known, admin, new_cell.file, options.rotate)
    database, database_password = "", ""
    if new_cell.login:
        database_password = await _database_password(new_cell, known)
        url = options.database or settings.database.url
        database = as_user(url, new_cell.login, database_password, f"/{new_cell.login}")
    # The file is written first: a repeated command then uses the same passwords.
    has = CellFile(as_user(options.broker or settings.bus.amqp_url, new_cell.user, password), database)
    async with undone_on_failure() as undo:
        if known is None:
            undo(f"the file {new_cell.file}", partial(delete_file, new_cell.file))
        wrote = write_cell_file(new_cell.file, new_cell.name, settings, has)
        access = await _make_login(new_cell, database_password, undo) if new_cell.login else DatabaseAccess()
        may = BrokerUser(password, permissions_of(settings, new_cell.name, agents), limits_of(settings))
        if new_cell.user not in await admin.users():
            policies = flood_policy(new_cell.name, settings.bus.exchange), queue_policy(new_cell.user)
            undo(f"RabbitMQ user {new_cell.user}", partial(admin.drop, new_cell.user, *policies))
        await admin.take(definitions_of(settings, new_cell.name, new_cell.user, may))
        async with cli.bus("cell") as bus:
            result = (await bus.asker(topics.EDIT_CELL)(edit)).result
            if not isinstance(result, CellEdited):
                raise OperationRefused("another edit of this cell is in progress: repeat the command")
            received = await _reaches_placement(bus, new_cell.name)
    _print_added(cli, new_cell, admin.by, wrote, access, received)
    return 0 if received else 1


async def delete_file(file: Path) -> None:
    file.unlink(missing_ok=True)


async def broker_password(
    user: str, known: CellFile | None, admin: RecordedUsers, file: Path, rotate: bool
) -> str:
    """Return a RabbitMQ user's password: the one in the cell's file (`known`), or a new one if the user is
    new or `rotate` is set. `admin` lists the users.

    Raise OperationRefused if the user exists, the file lacks its password, and `rotate` is not set.
    """
    password = password_of(known.broker, user) if known else ""
    if not rotate and not password and user in await admin.users():
        raise OperationRefused(_unknown_password(file, f"RabbitMQ user {user}"))
    return secrets.token_urlsafe(24) if rotate or not password else password


async def _database_password(new_cell: NewCell, known: CellFile | None) -> str:
    password = password_of(known.database, new_cell.login) if known else ""
    if not new_cell.options.rotate and not password:
        from berth.database_logins import logins  # databases take long to load

        async with logins(new_cell.settings.database.url) as server:
            if await server.has_login(new_cell.login):
                raise OperationRefused(_unknown_password(new_cell.file, f"PostgreSQL login {new_cell.login}"))
    return secrets.token_urlsafe(24) if new_cell.options.rotate or not password else password


def _unknown_password(file: Path, login: str) -> str:
    return (
        f"{login} is there already, and {file} does not have its password: name the file with --file, or"
        " give it a new one with --rotate"
    )


@dataclass(frozen=True)
class DatabaseAccess:
    """Access rights after a cell's PostgreSQL login was created: other databases that the login may open, and
    logins that may no longer open placement's database.
    """

    enters: Sequence[str] = ()  # other databases that the cell's login may still enter
    shut_out: Sequence[str] = ()  # logins that could enter placement's database only by the rights of PUBLIC


async def _make_login(new_cell: NewCell, password: str, undo: Undo) -> DatabaseAccess:
    from berth.database_logins import LoginLimits, logins

    url, limits = new_cell.settings.database.url, new_cell.settings.cell_limits

    async def drop() -> None:
        async with logins(url) as server:
            await server.drop(new_cell.login)

    async with logins(url) as server:
        if not (await server.has_login(new_cell.login) or await server.has_database(new_cell.login)):
            undo(f"PostgreSQL login and database {new_cell.login}", drop)
        shut_out = await server.close_to_public(database_of(new_cell.settings))
        seconds = limits.statement_seconds, limits.transaction_seconds, limits.lock_seconds
        of_login = LoginLimits(limits.database_connections, *seconds, limits.temp_bytes)
        await server.make(new_cell.login, password, of_login)
        return DatabaseAccess(await server.enters(new_cell.login), shut_out)


async def _reaches_placement(bus: Bus, cell: str) -> bool:
    """Return whether placement answers, within PLACEMENT_SECONDS, a query of the cell's RabbitMQ user."""
    ask = bus.asker(topics.CELL_PROVIDERS, timeout=2.0)
    with suppress(Unavailable, Unroutable):
        await repeated_until_answered(bus, partial(ask, FindProviders(cell=cell, limit=1)), PLACEMENT_SECONDS)
        return True
    return False


def _print_added(
    cli: Cli, new_cell: NewCell, by: str, wrote: bool, access: DatabaseAccess, received: bool
) -> None:
    name, login, limits = new_cell.name, new_cell.login, new_cell.settings.cell_limits
    if cli.as_json:
        facts = {"user": new_cell.user, "login": login, "file": str(new_cell.file), "wrote": wrote}
        facts |= {"also_connects_to": access.enters, "shut_out": access.shut_out}
        write_json({"cell": name, **facts, "limits": structs.asdict(limits), "registered": received})
    else:
        cli.line(
            f"cell {name}: RabbitMQ user {new_cell.user}, by {by}: at most {limits.connections} connections,"
            f" {limits.channels} channels and {limits.queue_bytes} bytes in each queue"
        )
        if login:
            most = f"at most {limits.database_connections} connections"
            cli.line(f"PostgreSQL login and database {login}: {most}")
        has = "has" if wrote else "has as before"
        cli.line(f"{new_cell.file} {has} its secrets, for its workers' machine alone:")
        cli.line(f"  berth --config {new_cell.file.name} run conductor --cell {name}")
        cli.line(f"each agent has its own: berth cell agent create {name} AGENT")
        if received:
            cli.line("it is registered, and placement consumes its reports")
    notes = []
    if access.enters:
        notes.append(
            f"note: every login may connect to database {', '.join(access.enters)}, so {login} may, too;"
            " REVOKE CONNECT ON DATABASE ... FROM PUBLIC ends that"
        )
    if access.shut_out:
        notes.append(
            f"note: CONNECT ON DATABASE {database_of(new_cell.settings)} was revoked from PUBLIC, so"
            f" {', '.join(access.shut_out)} can no longer connect to it; GRANT CONNECT to the logins"
            " that need it"
        )
    for sentence in notes:
        complain.print(sentence, markup=False)
    if not received:
        complain.print(
            f"it is registered, but placement does not consume the reports of cell {name} within "
            f"{PLACEMENT_SECONDS:g} s: its"
            f" log has the reason; a placement of an earlier version must be restarted with {name}"
            " among `cells`",
            style="red",
            markup=False,
        )
