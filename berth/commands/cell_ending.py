"""`berth cell delete` removes a cell; `add-agent` and `remove-agent` manage RabbitMQ users of agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from berth.broker_permissions import filled_by, flood_policy, queues_within
from berth.cell_file import CellFile, read_cell_file, write_cell_file
from berth.commands.cell_making import broker_password, delete_file
from berth.commands.cell_permissions import (
    NameOfCell,
    agent_user_of,
    check_agent,
    check_name,
    definitions_of,
    edit_of,
    ferry_permissions,
    limits_of_agent,
    login_of,
    need_service_mode,
    permissions_of_agent,
    user_of,
)
from berth.kit.broker_permissions import BrokerUser, queue_policy
from berth.kit.broker_users import BrokerTool, RecordedUsers
from berth.kit.command_groups import Commands
from berth.kit.dry_run import ActCli
from berth.kit.hosts import reported_hosts
from berth.kit.options import option, positional
from berth.kit.publishing import checked
from berth.kit.secret_files import as_user
from berth.kit.terminal import Cli
from berth.kit.undoing import undone_on_failure
from berth.operations.cells import (
    AGENT_SECONDS,
    CONDUCTOR_SECONDS,
    instances_left,
    mark_agent,
    registered_cells,
)
from berth.settings import Settings
from bus import topics
from bus.cells import CellEdited, CellInUse, DropCell
from bus.delivery.recording import RecordingBus
from bus.delivery.runner import Bus
from bus.errors import OperationRefused, Unavailable
from bus.removed_agents import AgentEditAnswered, AgentEditRequested
from bus.vocabulary import Missing
from control_room.kit.words import several

UNREAD_SECONDS = 5.0  # time limit for placement to unsubscribe from the queues of a removed cell

commands = Commands()
agents = Commands(name="agent", no_args_is_help=True)
commands.add_typer(agents)


@commands.command("delete")
async def remove(
    cli: ActCli,
    name: NameOfCell,
    force: bool = option(False, "Also with instances: their hosts are closed, and stay until released."),
    drop_database: bool = option(False, "Delete its database with all data, and its login, too."),
    keep_user: bool = option(False, "Leave RabbitMQ as it is: its user and queues stay."),
    *,
    tool: BrokerTool,
) -> None:
    """Remove an empty cell (see `berth cell disable --wait`) with its RabbitMQ user, queues and hosts.

    RabbitMQ disconnects the cell's running workers. The settings file stays; so does the database, unless
    --drop-database is given.
    """
    need_service_mode(cli.settings, "remove")
    check_name(name)
    admin = None if keep_user else await tool.users(cli)
    user, done = user_of(cli.settings, name), list[str]()
    async with cli.bus("cell") as bus:
        if (instances := await instances_left(bus, name)) and not force:
            inhabited = CellInUse(cell=name, instances=instances)
            raise OperationRefused(f"{inhabited}: `berth cell disable {name} --wait` waits for its end")
        if cli.dry_run:
            await _rehearse(cli, bus, name, admin, force, drop_database)
            return
        if admin is not None:  # before the hosts are deleted, or agents would report them again
            await _drop_users(cli.settings, name, admin)
            done.append(f"RabbitMQ user {user} is deleted, by {admin.by}")
        done.append(await _unregister(bus, name, force))
    if admin is not None:
        done += await _drop_queues(cli.settings, name, admin)
    if drop_database and (login := login_of(cli.settings, name)):
        from berth.database_logins import logins

        async with logins(cli.settings.database.url) as server:
            await server.drop(login)
        done.append(f"PostgreSQL login and database {login} are deleted")
    cli.tell("\n".join(f"cell {name}: {line}" for line in done), cell=name, done=done)


async def _rehearse(
    cli: ActCli, bus: RecordingBus, name: str, admin: RecordedUsers | None, force: bool, drop_database: bool
) -> None:
    """Print what `berth cell delete` would delete, with the number of each."""
    await bus.rehearse(edit_of(DropCell(cell=name, force=force)))
    registered = await registered_cells(bus)
    hosts, instances = registered.hosts.get(name, 0), registered.instances.get(name, 0)
    if not hosts and all(cell.name != name for cell in registered.cells):
        done = ["it is not registered, and has no hosts"]
    else:
        stay = f"; {several(instances, 'instance')} would stay until released" if instances else ""
        done = [f"its {several(hosts, 'host')} would be deleted, and its registration{stay}"]
    if admin is not None:
        users = {user_of(cli.settings, name), *await _agent_users(cli.settings, name, admin)}
        found = sorted(users & {*await admin.users()})
        for user in found:
            await admin.drop(user)
        queues = await _queues_of(cli.settings, name, admin)
        which = f": {', '.join(found)}" if found else ""
        done.append(f"{several(len(found), 'RabbitMQ user')} would be deleted, by {admin.by}{which}")
        done.append(f"{several(sum(map(len, queues)), 'queue')} would be deleted")
    if drop_database and login_of(cli.settings, name):
        done.append(f"PostgreSQL login and database {login_of(cli.settings, name)} would be deleted")
    facts = {"cell": name, "hosts": hosts, "instances": instances, "done": done}
    cli.tell("\n".join(f"cell {name}: {line}" for line in done), **facts)


async def _agent_users(settings: Settings, name: str, admin: RecordedUsers) -> list[str]:
    of_agents = agent_user_of(settings, name, "")
    return [known for known in await admin.users() if known.startswith(of_agents)]


async def _queues_of(
    settings: Settings, name: str, admin: RecordedUsers
) -> tuple[Sequence[str], Sequence[str]]:
    """Return the queues of a cell, and those that it fills and placement reads."""
    ferried, exchange = ferry_permissions(settings, name, at_cell_broker=False), settings.bus.exchange
    cell_queues = await admin.queues_like(f"{queues_within(name, exchange)}|{ferried.configure}")
    return cell_queues, await admin.queues_like(filled_by(name, exchange))


async def _drop_users(settings: Settings, name: str, admin: RecordedUsers) -> None:
    user = user_of(settings, name)
    await admin.drop(user, flood_policy(name, settings.bus.exchange), queue_policy(user))
    for agent in await _agent_users(settings, name, admin):
        await admin.drop(agent, queue_policy(agent))


async def _unregister(bus: Bus, name: str, force: bool) -> str:
    match (await bus.asker(topics.EDIT_CELL)(edit_of(DropCell(cell=name, force=force)))).result:
        case CellEdited():
            return "its hosts are deleted, and it is not registered any more"
        case Missing():
            return "it was not registered, and had no hosts"
        case CellInUse() as inhabited:
            raise OperationRefused(f"{inhabited}; it is disabled. Repeat the command when they have ended")
        case _:
            raise OperationRefused("other processes are changing it: repeat the command")


async def _drop_queues(settings: Settings, name: str, admin: RecordedUsers) -> list[str]:
    """Delete a removed cell's queues, and return sentences that report the result. Queues of placement for
    this cell are kept if they still have a consumer.
    """
    from berth.broker_inspection import delete_queues

    url = settings.bus.amqp_url
    cell_queues, filled = await _queues_of(settings, name, admin)
    await delete_queues(url, cell_queues)
    kept = (await delete_queues(url, filled, unread_within=UNREAD_SECONDS)).kept
    done = [f"{len(cell_queues) + len(filled) - len(kept)} queues of its are deleted"]
    if kept:
        done.append(f"still has a consumer, and was left: {', '.join(kept)}")
    return done


# An agent opens no database, but settings with an amqp_url must name one.
_NO_DATABASE = "sqlite+aiosqlite:///./"


CellOfAgent = Annotated[str, positional("The cell that the agent is in.", metavar="CELL")]
NameOfAgent = Annotated[str, positional("Its name: letters, digits, _ and -.", metavar="AGENT")]


@dataclass(frozen=True)
class AgentOptions:
    file: Path | None = option(None, "Settings file to write (default: AGENT.toml).", dir_okay=False)
    metal: bool = option(False, "For an agent that builds on Ironic's nodes (`berth run metal`).")
    rotate: bool = option(False, "New password; restart the agent with the new file.")
    broker: str = option("", "RabbitMQ as the agent reaches it (default: amqp_url).", metavar="URL")


@agents.command("create")
async def add_agent(
    cli: Cli, cell: CellOfAgent, name: NameOfAgent, options: AgentOptions, *, tool: BrokerTool
) -> None:
    """Create the RabbitMQ user of one agent and a settings file with its password (mode 0600).

    The user may read this agent's orders and publish reports to its cell, and has no other permissions. If
    the command is repeated, it restores the permissions and keeps the password in the file.
    """
    need_service_mode(cli.settings, "add")
    check_name(cell)
    check_agent(name)
    settings, file = cli.settings, options.file or Path(f"{name}.toml")
    user, admin = agent_user_of(settings, cell, name), await tool.users(cli)
    known = read_cell_file(file, cell)
    password = await broker_password(user, known, admin, file, options.rotate)
    may = permissions_of_agent(settings, cell, name, metal=options.metal)
    broker_user = BrokerUser(password, may, limits_of_agent(settings))
    async with undone_on_failure() as undo:
        if known is None:
            undo(f"the file {file}", partial(delete_file, file))
        url = as_user(options.broker or settings.bus.amqp_url, user, password)
        write_cell_file(file, cell, settings, CellFile(url, _NO_DATABASE))
        if user not in await admin.users():
            undo(f"RabbitMQ user {user}", partial(admin.drop, user, queue_policy(user)))
        await admin.take(definitions_of(settings, cell, user, broker_user, bounded=False))
    restored = None
    with suppress(Unavailable):
        async with cli.bus("cell") as bus:
            restored = await mark_agent(bus, cell, name, "restore", CONDUCTOR_SECONDS)
    worker = "metal" if options.metal else "compute"
    cli.tell(
        f"agent {name} of cell {cell}: RabbitMQ user {user}, by {admin.by}\n"
        f"{file} has its password, for the agent's machine alone:\n"
        f"  berth --config {file.name} run {worker} --cell {cell} --agent {name}{_remark(cell, restored)}",
        cell=cell,
        agent=name,
        user=user,
        file=str(file),
    )


def _remark(cell: str, restored: AgentEditAnswered | None) -> str:
    if restored is None:
        return (
            f"\nThe conductor of {cell} did not answer. If this agent was removed before, repeat the command"
            " when the conductor runs: until then builds on the agent's hosts fail."
        )
    if restored.assumed:
        return (
            f"\nWhen it was removed, {restored.assumed} of its guests were assumed to be destroyed:"
            " `berth audit check --agents` lists the guests that exist."
        )
    return ""


@agents.command("delete")
async def remove_agent(
    cli: ActCli,
    cell: CellOfAgent,
    name: NameOfAgent,
    no_user: bool = option(False, "It has no RabbitMQ user (any more): only its queues and orders."),
    *,
    tool: BrokerTool,
) -> None:
    """Remove an agent that will not return, with its RabbitMQ user and queues, and end its orders.

    Empty its hosts before (`berth host drain`), or switch them off: berth assumes that no guest runs there
    any more. Builds in progress there continue on another host or end in error, and moves continue as with a
    silent agent. Deletions, also later ones, end without the agent's answer, and release what the guests
    held; `berth audit check` lists these guests for a week (`keep`). Active instances stay recorded on the
    hosts: evacuate or delete them. Shared nodes go to other agents, with their orders.

    With --no-user repeat it for an agent whose cell did not answer.
    """
    need_service_mode(cli.settings, "remove")
    from berth.broker_inspection import delete_queues

    check_name(cell)
    check_agent(name)
    admin = await tool.users(cli)
    user, done = agent_user_of(cli.settings, cell, name), list[str]()
    if user in await admin.users():
        await admin.drop(user, queue_policy(user))
        done.append(f"RabbitMQ user {user} {cli.is_now('deleted')}, by {admin.by}")
    elif not no_user:
        raise OperationRefused(f"there is no RabbitMQ user {user}: if it is deleted already, add --no-user")
    queues = await admin.queues_like(permissions_of_agent(cli.settings, cell, name).configure)
    facts = {"cell": cell, "agent": name, "user": user, "queues": queues}
    if cli.dry_run:
        await _rehearse_removal(cli, facts, done)
        return
    deleted = await delete_queues(cli.settings.bus.amqp_url, queues)
    done.append(f"{len(queues)} queues of its with {deleted.messages} messages are deleted")
    answer = None
    with suppress(Unavailable):
        async with cli.bus("cell") as bus:
            answer = await mark_agent(bus, cell, name, "remove", AGENT_SECONDS)
    if answer is None:
        why = f"{'; '.join(done)}. But its orders continue, because the cell did not answer"
        raise OperationRefused(f"{why}: when its conductor runs, repeat the command with --no-user")
    done.append("its conductor ends its orders within seconds")
    if answer.nodes:
        done.append(f"{answer.nodes} bare-metal nodes go to other agents")
    cli.tell("\n".join(f"agent {name} of cell {cell}: {line}" for line in done), **facts, done=done)


async def _rehearse_removal(cli: ActCli, facts: Mapping[str, Any], done: list[str]) -> None:
    """Print what `berth cell agent delete` would do, in addition to the sentences in `done`."""
    cell, name = facts["cell"], facts["agent"]
    done.append(f"{several(len(facts['queues']), 'queue')} of its would be deleted")
    async with cli.bus("cell") as bus:
        await bus.rehearse(checked(AgentEditRequested(cell=cell, agent=name, edit="remove")))
        hosts = [host async for host in reported_hosts(bus, name) if host.cell == cell]
    done.append(f"its conductor would end its orders on {several(len(hosts), 'host')}")
    lines = (f"agent {name} of cell {cell}: {line}" for line in done)
    cli.tell("\n".join(lines), **facts, hosts=len(hosts), done=done)
