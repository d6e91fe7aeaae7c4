"""`berth cell add`: a cell's own user, database and settings, and its place in the registry."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from berth import wiring
from berth.cell_file import CellFile, as_user, password_of, read_cell_file, write_cell_file
from berth.commands.cell_permissions import (
    Ctl,
    Management,
    NameOfCell,
    check_name,
    definitions_of,
    edit_of,
    login_of,
    need_service_mode,
    permissions_of,
    user_of,
)
from berth.commands.options import Json, StateDir
from berth.commands.terminal import CommandRefused, complain, effective, run, say, write_json
from berth.settings import Settings
from bus import topics
from bus.cells import CellEdited, RegisterCell
from bus.clock import monotonic
from bus.delivery.runner import Bus
from bus.errors import Unavailable
from bus.resources import FindProviders

if TYPE_CHECKING:
    from berth.broker_users import BrokerUsers

HEARD_SECONDS = 10.0  # placement may take to begin with a new cell's queues

commands = typer.Typer()


@commands.command("add")
def add_command(
    name: NameOfCell,
    file: Annotated[
        Path | None, typer.Option(help="Where its settings go (default: CELL.toml).", dir_okay=False)
    ] = None,
    note: Annotated[str | None, typer.Option(help="What people should know of it.")] = None,
    disabled: Annotated[bool, typer.Option("--disabled", help="Closed to instances, to begin with.")] = False,
    rotate: Annotated[
        bool, typer.Option("--rotate", help="New passwords; its workers are restarted with the new file.")
    ] = False,
    broker: Annotated[
        str, typer.Option(metavar="URL", help="How its workers reach RabbitMQ (default: as we do).")
    ] = "",
    database: Annotated[
        str, typer.Option(metavar="URL", help="How they reach PostgreSQL (default: as we do).")
    ] = "",
    management: Management = "",
    rabbitmqctl: Ctl = "",
    as_json: Json = False,
    state_dir: StateDir = None,
) -> None:
    """Make a cell: a RabbitMQ user that may do what its workers do and no more, a PostgreSQL login with a
    database of its own, a settings file with these secrets alone (mode 0600), and its place in the registry.

    It needs the rights to make users, from amqp_url and database_url of these settings or the options.
    Placement hears the cell at once; nothing is restarted. Then, on the cell's machine:

        berth --config CELL.toml run conductor --cell CELL
        berth --config CELL.toml run compute --cell CELL

    Said again it changes nothing that is as it should be, and mends what is not; the passwords are those of
    the file until --rotate. None is printed, nor logged; servers get hashes.
    """
    settings = effective(state_dir=state_dir).settings
    need_service_mode(settings, "add")
    what = NewCell(settings, name, file or Path(f"{name}.toml"), rotate, broker, database)
    edit = RegisterCell(cell=name, enabled=False if disabled else None, note=note)
    run(add(what, edit, management, rabbitmqctl, as_json, say))


@dataclass(frozen=True)
class NewCell:
    settings: Settings
    name: str
    file: Path
    rotate: bool
    broker: str
    database: str

    @property
    def user(self) -> str:
        return user_of(self.settings, self.name)

    @property
    def login(self) -> str:
        return login_of(self.settings, self.name)


async def add(
    what: NewCell, edit: RegisterCell, management: str, rabbitmqctl: str, as_json: bool, say: Console
) -> int:
    from berth.broker_users import broker_users  # they and RabbitMQ take long to load
    from bus.rabbit.permissions import BrokerUser

    check_name(what.name)
    settings = what.settings
    admin = await broker_users(settings.bus.amqp_url, management, rabbitmqctl)
    known = read_cell_file(what.file, what.name)
    broker_password = await _broker_password(what, known, admin)
    database_password = await _database_password(what, known)
    # The file first: whatever comes in between, said again it has the same passwords.
    has = CellFile(
        as_user(what.broker or settings.bus.amqp_url, what.user, broker_password),
        as_user(what.database or settings.database.url, what.login, database_password, f"/{what.login}")
        if what.login
        else "",
    )
    wrote = write_cell_file(what.file, what.name, settings, has)
    may = BrokerUser(broker_password, permissions_of(settings, what.name))
    await admin.take(definitions_of(settings, what.name, what.user, may))
    enters = await _made_login(what, database_password)
    async with Bus(wiring.transport(settings, "cell")) as bus:
        result = (await bus.asker(topics.EDIT_CELL)(edit_of(edit))).result
        heard = await _placement_hears(bus, what.name)
    if not isinstance(result, CellEdited):
        raise CommandRefused("others are at work on it just now: say the same again")
    _tell_added(what, admin.by, wrote, enters, heard, as_json, say)
    return 0 if heard else 1


async def _broker_password(what: NewCell, known: CellFile | None, admin: BrokerUsers) -> str:
    """The file's; a new one for a new user, or when it is rotated."""
    password = password_of(known.broker, what.user) if known else ""
    if not what.rotate and not password and what.user in await admin.users():
        raise CommandRefused(_unknown_password(what, f"RabbitMQ user {what.user}"))
    return secrets.token_urlsafe(24) if what.rotate or not password else password


async def _database_password(what: NewCell, known: CellFile | None) -> str:
    if not what.login:
        return ""
    password = password_of(known.database, what.login) if known else ""
    if not what.rotate and not password:
        from bus.sql.logins import logins  # databases take long to load

        async with logins(what.settings.database.url) as server:
            if await server.has_login(what.login):
                raise CommandRefused(_unknown_password(what, f"PostgreSQL login {what.login}"))
    return secrets.token_urlsafe(24) if what.rotate or not password else password


def _unknown_password(what: NewCell, who: str) -> str:
    return (
        f"{who} is there already, and {what.file} does not have its password: name the file with --file, or"
        " give it a new one with --rotate"
    )


async def _made_login(what: NewCell, password: str) -> list[str]:
    """The other databases that the login may connect to."""
    if not what.login:
        return []
    from bus.sql.logins import logins

    async with logins(what.settings.database.url) as server:
        await server.make(what.login, password)
        return await server.enters(what.login)


async def _placement_hears(bus: Bus, cell: str) -> bool:
    """Does placement answer what is asked from within this cell?"""
    ask = bus.asker(topics.CELL_PROVIDERS, timeout=2.0)
    until = monotonic() + HEARD_SECONDS
    while True:
        try:
            await ask(FindProviders(cell=cell, limit=1))
            return True
        except Unavailable:
            if monotonic() >= until:
                return False
            await asyncio.sleep(0.1)


def _tell_added(
    what: NewCell, by: str, wrote: bool, enters: list[str], heard: bool, as_json: bool, say: Console
) -> None:
    if as_json:
        facts = {"user": what.user, "login": what.login, "file": str(what.file), "wrote": wrote}
        write_json({"cell": what.name, **facts, "also_connects_to": enters, "heard": heard})
    else:
        lines = [f"cell {what.name}: RabbitMQ user {what.user}, by {by}"]
        if what.login:
            lines.append(f"PostgreSQL login and database {what.login}")
        lines.append(
            f"{what.file} {'has' if wrote else 'has as before'} its secrets, for its workers' machine alone:"
        )
        lines += [
            f"  berth --config {what.file.name} run {worker} --cell {what.name}"
            for worker in ("conductor", "compute")
        ]
        if heard:
            lines.append("it is registered, and placement hears it")
        for line in lines:
            say.print(line, markup=False)
    if enters:
        complain.print(
            f"note: everybody may connect to database {', '.join(enters)}, so {what.login} may, too, though"
            " it reads nothing there; REVOKE CONNECT ON DATABASE ... FROM PUBLIC ends that",
            markup=False,
        )
    if not heard:
        complain.print(
            f"it is registered, but placement does not hear cell {what.name} within {HEARD_SECONDS:g} s: its"
            f" log says why; one from before this version must be restarted with {what.name} among `cells`",
            style="red",
            markup=False,
        )
