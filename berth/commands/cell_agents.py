"""`berth cell add-agent` and `remove-agent`: an agent's own RabbitMQ user and settings file."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from berth.cell_file import CellFile, as_user, read_cell_file, write_cell_file
from berth.commands.cell_making import broker_password, delete_file, undone_on_failure
from berth.commands.cell_permissions import (
    Ctl,
    Management,
    agent_user_of,
    check_agent,
    check_name,
    definitions_of,
    limits_of_agent,
    need_service_mode,
    permissions_of_agent,
)
from berth.commands.options import Json, StateDir
from berth.commands.terminal import effective, run, say, write_json
from berth.settings import Settings
from bus.errors import OperationRefused

# An agent opens no database, but settings with an amqp_url must name one.
_NO_DATABASE = "sqlite+aiosqlite:///./"

commands = typer.Typer()

CellOfAgent = Annotated[str, typer.Argument(metavar="CELL", help="The cell that the agent is in.")]
NameOfAgent = Annotated[str, typer.Argument(metavar="AGENT", help="Its name: letters, digits, _ and -.")]


@commands.command("add-agent")
def add_agent_command(
    cell: CellOfAgent,
    name: NameOfAgent,
    file: Annotated[
        Path | None, typer.Option(help="Settings file to write (default: AGENT.toml).", dir_okay=False)
    ] = None,
    metal: Annotated[
        bool, typer.Option("--metal", help="For an agent that builds on Ironic's nodes (`berth run metal`).")
    ] = False,
    rotate: Annotated[
        bool, typer.Option("--rotate", help="New password; restart the agent with the new file.")
    ] = False,
    broker: Annotated[
        str, typer.Option(metavar="URL", help="RabbitMQ as the agent reaches it (default: amqp_url).")
    ] = "",
    management: Management = "",
    rabbitmqctl: Ctl = "",
    as_json: Json = False,
    state_dir: StateDir = None,
) -> None:
    """Create the RabbitMQ user of one agent and a settings file with its password (mode 0600).

    The user may read the orders of this agent, and publish the reports of its cell; nothing else of the cell.
    Repeated, the command restores the user's permissions and keeps the password of the file.
    """
    settings = effective(state_dir=state_dir).settings
    need_service_mode(settings, "add")
    agent = NewAgent(settings, cell, name, file or Path(f"{name}.toml"), rotate, broker, metal)
    run(add_agent(agent, management, rabbitmqctl, as_json, say))


@commands.command("remove-agent")
def remove_agent_command(
    cell: CellOfAgent,
    name: NameOfAgent,
    management: Management = "",
    rabbitmqctl: Ctl = "",
    as_json: Json = False,
    state_dir: StateDir = None,
) -> None:
    """Delete the RabbitMQ user of an agent, which closes its connections, and the agent's queues."""
    settings = effective(state_dir=state_dir).settings
    need_service_mode(settings, "remove")
    run(remove_agent(settings, cell, name, management, rabbitmqctl, as_json, say))


@dataclass(frozen=True)
class NewAgent:
    settings: Settings
    cell: str
    name: str
    file: Path
    rotate: bool = False
    broker: str = ""
    metal: bool = False

    @property
    def user(self) -> str:
        return agent_user_of(self.settings, self.cell, self.name)


async def add_agent(what: NewAgent, management: str, rabbitmqctl: str, as_json: bool, say: Console) -> int:
    from berth.broker_users import broker_users  # RabbitMQ's modules take long to load
    from bus.rabbit.permissions import BrokerUser, queue_policy

    settings = what.settings
    check_name(what.cell)
    check_agent(what.name)
    admin = await broker_users(settings.bus.amqp_url, management, rabbitmqctl)
    known = read_cell_file(what.file, what.cell)
    password = await broker_password(what, known, admin)
    may = permissions_of_agent(settings, what.cell, what.name, metal=what.metal)
    user = BrokerUser(password, may, limits_of_agent(settings))
    async with undone_on_failure() as undo:
        if known is None:
            undo(f"the file {what.file}", partial(delete_file, what.file))
        url = as_user(what.broker or settings.bus.amqp_url, what.user, password)
        has = CellFile(url, _NO_DATABASE)
        write_cell_file(what.file, what.cell, settings, has)
        if what.user not in await admin.users():
            undo(f"RabbitMQ user {what.user}", partial(admin.drop, what.user, queue_policy(what.user)))
        await admin.take(definitions_of(settings, what.cell, what.user, user, bounded=False))
    if as_json:
        facts = {"cell": what.cell, "agent": what.name, "user": what.user, "file": str(what.file)}
        write_json(facts)
        return 0
    say.print(
        f"agent {what.name} of cell {what.cell}: RabbitMQ user {what.user}, by {admin.by}", markup=False
    )
    worker = "metal" if what.metal else "compute"
    start = f"berth --config {what.file.name} run {worker} --cell {what.cell} --agent {what.name}"
    say.print(f"{what.file} has its password, for the agent's machine alone:\n  {start}", markup=False)
    return 0


async def remove_agent(
    settings: Settings, cell: str, name: str, management: str, rabbitmqctl: str, as_json: bool, say: Console
) -> int:
    from berth.broker_users import broker_users
    from bus.rabbit.inspection import delete_queues
    from bus.rabbit.permissions import queue_policy

    check_name(cell)
    check_agent(name)
    admin = await broker_users(settings.bus.amqp_url, management, rabbitmqctl)
    user = agent_user_of(settings, cell, name)
    if user not in await admin.users():
        raise OperationRefused(f"there is no RabbitMQ user {user}")
    await admin.drop(user, queue_policy(user))
    own = re.compile(permissions_of_agent(settings, cell, name).configure)
    queues = [queue for queue in await admin.queues() if own.match(queue)]
    await delete_queues(settings.bus.amqp_url, queues)
    if as_json:
        write_json({"cell": cell, "agent": name, "user": user, "queues": queues})
    else:
        say.print(
            f"agent {name} of cell {cell}: RabbitMQ user {user} and its queues are deleted", markup=False
        )
    return 0
