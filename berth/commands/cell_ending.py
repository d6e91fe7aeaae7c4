"""`berth cell remove`: the end of a cell, of its user and its queues."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from berth import wiring
from berth.commands.cell_permissions import (
    Ctl,
    Management,
    NameOfCell,
    agent_user_of,
    check_name,
    edit_of,
    ferry_permissions,
    login_of,
    need_service_mode,
    user_of,
)
from berth.commands.options import Json, StateDir
from berth.commands.terminal import effective, run, say, write_json
from berth.settings import Settings
from bus import topics
from bus.cells import CellEdited, CellInUse, DropCell, FindCells
from bus.delivery.runner import Bus
from bus.errors import OperationRefused
from bus.vocabulary import Missing

if TYPE_CHECKING:
    from berth.broker_users import BrokerUsers

UNREAD_SECONDS = 5.0  # for placement to unsubscribe from the queues of a removed cell

commands = typer.Typer()


@commands.command("remove")
def remove_command(
    name: NameOfCell,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="With instances, too: what they hold is closed, and stays until given back."
        ),
    ] = False,
    drop_database: Annotated[
        bool, typer.Option("--drop-database", help="Its database and login, too, with all that is in it.")
    ] = False,
    keep_user: Annotated[
        bool, typer.Option("--keep-user", help="Leave RabbitMQ as it is: its user and queues stay.")
    ] = False,
    management: Management = "",
    rabbitmqctl: Ctl = "",
    as_json: Json = False,
    state_dir: StateDir = None,
) -> None:
    """Remove an empty cell (`berth cell drain --wait`): its RabbitMQ user and queues, and its hosts.

    RabbitMQ disconnects workers that still run. The settings file stays, and so does the database unless
    --drop-database is given.
    """
    settings = effective(state_dir=state_dir).settings
    need_service_mode(settings, "remove")
    run(remove(settings, name, force, drop_database, keep_user, management, rabbitmqctl, as_json, say))


async def remove(
    settings: Settings,
    name: str,
    force: bool,
    drop_database: bool,
    keep_user: bool,
    management: str,
    rabbitmqctl: str,
    as_json: bool,
    say: Console,
) -> int:
    from berth.broker_users import broker_users  # they and RabbitMQ take long to load
    from bus.rabbit import permissions

    check_name(name)
    admin = None if keep_user else await broker_users(settings.bus.amqp_url, management, rabbitmqctl)
    user, done = user_of(settings, name), list[str]()
    async with Bus(wiring.transport(settings, "cell")) as bus:
        await _refuse_the_inhabited(bus, name, force)
        if admin is not None:  # before its hosts go, or its agents would report them again
            flood = permissions.flood_policy(name, settings.bus.exchange)
            await admin.drop(user, flood, permissions.queue_policy(user))
            for agent in [
                one for one in await admin.users() if one.startswith(agent_user_of(settings, name, ""))
            ]:
                await admin.drop(agent, permissions.queue_policy(agent))
            done.append(f"RabbitMQ user {user} is no more, by {admin.by}")
        match (await bus.asker(topics.EDIT_CELL)(edit_of(DropCell(cell=name, force=force)))).result:
            case CellEdited():
                done.append("its hosts are gone, and it is out of the registry")
            case Missing():
                done.append("it was not registered, and had no hosts")
            case CellInUse() as inhabited:
                raise OperationRefused(f"{inhabited}; it is closed. Say the same again when that is over")
            case _:
                raise OperationRefused("others are at work on it just now: say the same again")
    if admin is not None:
        done += await _drop_queues(settings, name, admin)
    if drop_database and (login := login_of(settings, name)):
        from bus.sql.logins import logins

        async with logins(settings.database.url) as server:
            await server.drop(login)
        done.append(f"PostgreSQL login and database {login} are no more")
    if as_json:
        write_json({"cell": name, "done": done})
    else:
        for line in done:
            say.print(f"cell {name}: {line}", markup=False)
    return 0


async def _refuse_the_inhabited(bus: Bus, name: str, force: bool) -> None:
    found = await bus.asker(topics.CELLS)(FindCells())
    if (instances := found.instances.get(name, 0)) and not force:
        raise OperationRefused(
            f"{CellInUse(cell=name, instances=instances)}: `berth cell drain {name} --wait` waits for its end"
        )


async def _drop_queues(settings: Settings, name: str, admin: BrokerUsers) -> list[str]:
    """Delete the cell's queues, then the queues that only the cell filled, after placement has
    unsubscribed.
    """
    from bus.rabbit import permissions
    from bus.rabbit.inspection import delete_queues

    ferried = ferry_permissions(settings, name, own=False)
    own = re.compile(f"{permissions.queues_within(name, settings.bus.exchange)}|{ferried.configure}")
    filled = re.compile(permissions.filled_by(name, settings.bus.exchange))
    there = await admin.queues()
    url = settings.bus.amqp_url
    mine = [queue for queue in there if own.match(queue)]
    others = [queue for queue in there if filled.match(queue)]
    stay = await delete_queues(url, mine)
    stay += await delete_queues(url, others, unread_within=UNREAD_SECONDS)
    done = [f"{len(mine) + len(others) - len(stay)} queues of its are deleted"]
    if stay:
        done.append(f"still read by somebody, and left: {', '.join(stay)}")
    return done
