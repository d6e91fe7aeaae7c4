"""`berth cell permissions`: the permissions of a cell's RabbitMQ user; and the names of a cell's users and
databases.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from berth import wiring, worker_roles
from berth.cell_file import vhost_of
from berth.commands.options import Commands, StateDir, option
from berth.commands.terminal import effective
from berth.operations.publishing import checked
from berth.settings import BadSetting, Settings
from bus.cells import CellEditRequested, DropCell, RegisterCell
from bus.errors import OperationRefused

if TYPE_CHECKING:  # RabbitMQ takes long to load
    from berth.broker_users import BrokerUsers
    from bus.rabbit.permissions import BrokerUser, Permissions, UserLimits

_IDENTIFIER_BYTES = 63  # of a PostgreSQL name

commands = Commands()

NameOfCell = Annotated[str, typer.Argument(metavar="CELL", help="Its name: letters, digits, _ and -.")]


@dataclass(frozen=True)
class BrokerTool:
    """The options that determine the tool by which RabbitMQ's users are administered."""

    management: str = option(
        "",
        "RabbitMQ's management API, http://user:password@host:15672 (default: where it usually is,"
        " as whom amqp_url names).",
        metavar="URL",
    )
    rabbitmqctl: str = option("", "Use this on the broker's machine, instead.", metavar="COMMAND")

    async def users(self, settings: Settings) -> BrokerUsers:
        from berth.broker_users import broker_users  # it takes long to load

        return await broker_users(settings.bus.amqp_url, self.management, self.rabbitmqctl)


Form = Annotated[
    str,
    typer.Option("--as", metavar="FORM", help="text, rabbitmqctl (lines for a shell) or json (definitions)."),
]


@dataclass(frozen=True)
class PermissionOptions:
    """The options that determine whose permissions are printed, and how."""

    form: Form = "text"
    user: str = option("", "Of this RabbitMQ user (default: as `add` calls it).")
    ferry: str = option(
        "",
        "Of its ferry's user, where it has a RabbitMQ of its own: there (own), or in the middle.",
        metavar="SIDE",
    )
    agent: str = option("", "Of the user of this agent.", metavar="AGENT")
    as_json: bool = option(False, "The same as `--as json`.", "--json")


@commands.command("permissions")
def permissions_command(name: NameOfCell, options: PermissionOptions, state_dir: StateDir = None) -> None:
    """Print the permissions of a cell's RabbitMQ user, derived from its workers' tables. Nothing is changed.

    For users created by hand: `--as rabbitmqctl` prints shell commands, `--as json` a file for `rabbitmqctl
    import_definitions` and the management API. The user and its password are not included.
    """
    form = "json" if options.as_json else options.form
    if form not in ("text", "rabbitmqctl", "json"):
        raise BadSetting(f"--as {form!r}: it is text, rabbitmqctl or json")
    if options.ferry not in ("", "own", "middle"):
        raise BadSetting(f"--ferry {options.ferry!r}: it is own or middle")
    settings = effective(state_dir=state_dir).settings
    if options.ferry:
        user = ferry_user_of(settings, name)
    elif options.agent:
        check_agent(options.agent)
        user = agent_user_of(settings, name, options.agent)
    else:
        user = user_of(settings, name)
    show_permissions(settings, name, form, options.user or user, options.ferry, options.agent)


# What is a cell's own


def need_service_mode(settings: Settings, verb: str) -> None:
    if settings.embedded:
        raise OperationRefused(
            f"there is nothing to {verb}: an embedded berth has the cells of its settings (`cells`), all in"
            " one process; with amqp_url it has walled ones. `disable`, `enable` and `drain` work here, too"
        )


def user_of(settings: Settings, cell: str) -> str:
    return f"{settings.bus.exchange}-{cell}"


def ferry_user_of(settings: Settings, cell: str) -> str:
    """Return the name of a ferry's RabbitMQ user. No cell has a dot in its name, so no cell's user has it."""
    return f"{user_of(settings, cell)}.ferry"


def agent_user_of(settings: Settings, cell: str, agent: str) -> str:
    return f"{user_of(settings, cell)}.agent.{agent}"


def database_of(settings: Settings) -> str:
    """Return the name of the PostgreSQL database of the settings, or "" if they name none."""
    url = settings.database.url
    if not url.startswith("postgresql"):
        return ""
    return re.sub(r"[?#].*", "", url).rpartition("/")[2] or "berth"


def login_of(settings: Settings, cell: str) -> str:
    """Return the name of the PostgreSQL login and database of a cell's conductor, or "" with SQLite files."""
    ours = database_of(settings)
    return f"{ours}_{cell}" if ours else ""


def edit_of(edit: RegisterCell | DropCell) -> CellEditRequested:
    return checked(CellEditRequested(edit=edit))


def check_name(name: str) -> None:
    edit_of(RegisterCell(cell=name))


def check_agent(name: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
        raise BadSetting(f"agent {name!r}: takes a word of at most 64 letters, digits, _ and -")


def check_identifiers(settings: Settings, name: str) -> None:
    """Raise BadSetting if PostgreSQL would cut the name of the cell's login or schema."""
    check_name(name)
    if login := login_of(settings, name):
        longest = max((login, wiring.store_of(worker_roles.Role("conductor", name))), key=len)
        if (excess := len(longest.encode()) - _IDENTIFIER_BYTES) > 0:
            raise BadSetting(
                f"cell {name!r}: PostgreSQL allows names of {_IDENTIFIER_BYTES} bytes, and {longest!r} would"
                f" have {len(longest.encode())}: take a name of at most {len(name) - excess} characters"
            )


# Printing


def show_permissions(
    settings: Settings, cell: str, form: str, user: str, ferry: str = "", agent: str = ""
) -> None:
    from bus.rabbit.permissions import BrokerUser

    check_name(cell)
    limits: UserLimits | None = limits_of(settings)
    if ferry:
        may, limits = ferry_permissions(settings, cell, own=ferry == "own"), None
    elif agent:
        may = permissions_of_agent(settings, cell, agent)
        limits = limits_of_agent(settings)
    else:
        may = permissions_of(settings, cell)
    url = settings.cell(cell).ferry or settings.bus.amqp_url if ferry == "own" else settings.bus.amqp_url
    vhost = vhost_of(url)
    known = BrokerUser("", may, limits)
    bounded = ferry != "own" and not agent
    made = definitions_of(settings, cell, user, known, vhost=vhost, bounded=bounded)
    match form:
        case "json":
            sys.stdout.write(json.dumps(made, indent=2) + "\n")
        case "rabbitmqctl":
            sys.stdout.write("".join(f"{line}\n" for line in _control_lines(made, user, vhost, known.limits)))
        case _:
            sys.stdout.write("".join(f"{line}\n" for line in _sentences(known, user, vhost)))


def limits_of(settings: Settings) -> UserLimits:
    from bus.rabbit.permissions import UserLimits

    limits = settings.cell_limits
    return UserLimits(limits.connections, limits.channels, limits.queue_bytes)


def limits_of_agent(settings: Settings) -> UserLimits:
    """Return the limits of an agent's user: one process, and its connections that RabbitMQ still holds."""
    from bus.rabbit.permissions import UserLimits

    return UserLimits(connections=10, channels=200, queue_bytes=settings.cell_limits.queue_bytes)


def permissions_of(settings: Settings, cell: str, agents: Sequence[str] = ()) -> Permissions:
    """Return the permissions of a cell's RabbitMQ user: those of its conductor, and of the named agents."""
    from bus.rabbit.permissions import of_cell

    tables = [wiring.tables_of_conductor(cell), *(wiring.tables_of_agent(cell, agent) for agent in agents)]
    return of_cell(cell, [worker for those in tables for worker in those], settings.bus.exchange)


def permissions_of_agent(settings: Settings, cell: str, agent: str, *, metal: bool = False) -> Permissions:
    from bus.rabbit.permissions import of_cell

    return of_cell(cell, wiring.tables_of_agent(cell, agent, metal=metal), settings.bus.exchange)


def ferry_permissions(settings: Settings, cell: str, *, own: bool) -> Permissions:
    from bus.rabbit.permissions import of_ferry

    return of_ferry(wiring.crossings_of(cell), own=own, exchange=settings.bus.exchange)


def definitions_of(
    settings: Settings, cell: str, user: str, known: BrokerUser, *, vhost: str = "", bounded: bool = True
) -> dict[str, Any]:
    """Return the definitions of a RabbitMQ user to import; with `bounded`, also the policy for the queues
    that the cell fills at the central broker.
    """
    from bus.rabbit.permissions import definitions

    where = vhost or vhost_of(settings.bus.amqp_url)
    cells = (cell,) if bounded else ()
    return definitions({user: known}, cells, settings.bus.exchange, where, settings.cell_limits.queue_bytes)


def _control_lines(made: Mapping[str, Any], user: str, vhost: str, limits: UserLimits | None) -> list[str]:
    at = ["rabbitmqctl", "-p", vhost]
    for_user = json.dumps(limits.of_user) if limits else "{}"
    lines = [
        *(
            ["set_permissions", user, one["configure"], one["write"], one["read"]]
            for one in made["permissions"]
        ),
        *(
            ["set_topic_permissions", user, one["exchange"], one["write"], one["read"]]
            for one in made["topic_permissions"]
        ),
        *(
            [
                "set_policy", "--priority", str(one["priority"]), "--apply-to", one["apply-to"],
                one["name"], one["pattern"], json.dumps(one["definition"]),
            ]
            for one in made["policies"]
        ),
    ]  # fmt: skip
    head = f"# first: rabbitmqctl add_user {shlex.quote(user)}   (it asks for the password)"
    bounds = [shlex.join(["rabbitmqctl", "set_user_limits", user, for_user])] if limits else []
    return [head, *bounds, *(shlex.join([*at[:1], command[0], *at[1:], *command[1:]]) for command in lines)]


def _sentences(known: BrokerUser, user: str, vhost: str) -> list[str]:
    may, limits = known.permissions, known.limits
    lines = [f"RabbitMQ user {user}, virtual host {vhost}"]
    if limits is not None:
        lines += ["limits", *(f"  {name} {value}" for name, value in limits.of_user.items())]
        lines.append(f"  bytes in each of its queues {limits.queue_bytes}")
    lines.append("queues and exchanges")
    for what, pattern in (("make", may.configure), ("write to", may.write), ("read", may.read)):
        lines.append(f"  {what}")
        lines += [f"    {alternative}" for alternative in _alternatives(pattern)]
    for keys in may.keys:
        lines.append(f"keys of {keys.exchange}")
        for what, pattern in (("publish", keys.write), ("bind", keys.read)):
            lines.append(f"  {what}")
            lines += [f"    {alternative}" for alternative in _alternatives(pattern)]
    return lines


def _alternatives(pattern: str) -> list[str]:
    """Return the alternatives of a regular expression such as ^(a|b|(c|d))$, one in each line."""
    if pattern == "^$":
        return ["nothing"]
    found, depth, begin = [], 0, 2
    for at, sign in enumerate(pattern):
        depth += (sign == "(") - (sign == ")")
        if (sign == "|" and depth == 1) or (sign == ")" and depth == 0):
            found.append(pattern[begin:at])
            begin = at + 1
    return found
