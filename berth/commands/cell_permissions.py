"""`berth cell permissions`: computes the names and permissions of a cell's RabbitMQ users and databases."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from berth import composition, worker_roles
from berth.broker_permissions import filled_by, flood_policy, of_cell, of_ferry
from berth.kit.broker_permissions import BrokerUser, Permissions, UserLimits, definitions
from berth.kit.command_groups import Commands, StateDir
from berth.kit.options import option, positional
from berth.kit.publishing import checked
from berth.kit.running import effective
from berth.settings import BadSetting, Settings
from bus.broker_urls import vhost_of
from bus.cells import CellEditRequested, DropCell, RegisterCell
from bus.errors import OperationRefused

_IDENTIFIER_BYTES = 63  # longest name in PostgreSQL


commands = Commands()


NameOfCell = Annotated[str, positional("Its name: letters, digits, _ and -.", metavar="CELL")]


@dataclass(frozen=True)
class PermissionOptions:
    form: str = option(
        "text", "text, rabbitmqctl (lines for a shell) or json (definitions).", "--as", metavar="FORM"
    )
    user: str = option("", "Of this RabbitMQ user (default: as `create` calls it).")
    ferry: str = option(
        "",
        "Of the ferry's user, if the cell has a separate RabbitMQ: at that broker (own) or at the"
        " central one (middle).",
        metavar="SIDE",
    )
    agent: str = option("", "Of the user of this agent.", metavar="AGENT")
    as_json: bool = option(False, "The same as `--as json`.", "--json")


@commands.command("permissions")
def permissions_command(name: NameOfCell, options: PermissionOptions, state_dir: StateDir = None) -> None:
    """Print the permissions of a cell's RabbitMQ user, derived from its workers' topics; change nothing.

    Use it to create users by hand: `--as rabbitmqctl` prints shell commands, `--as json` a file for
    `rabbitmqctl import_definitions` and the management API. The user and its password are not included.
    """
    form = "json" if options.as_json else options.form
    if form not in ("text", "rabbitmqctl", "json"):
        raise BadSetting(f"--as {form!r}: it is text, rabbitmqctl or json")
    if options.ferry not in ("", "own", "middle"):
        raise BadSetting(f"--ferry {options.ferry!r}: it is own or middle")
    settings = effective(state_dir=state_dir).settings
    check_name(name)
    limits: UserLimits | None = limits_of(settings)
    url = settings.bus.amqp_url
    if options.ferry:
        at_cell_broker = options.ferry == "own"
        user, may, limits = (
            ferry_user_of(settings, name),
            ferry_permissions(settings, name, at_cell_broker=at_cell_broker),
            None,
        )
        url = (settings.cell(name).ferry if at_cell_broker else "") or url
    elif options.agent:
        check_agent(options.agent)
        user, limits = agent_user_of(settings, name, options.agent), limits_of_agent(settings)
        may = permissions_of_agent(settings, name, options.agent)
    else:
        user, may = user_of(settings, name), permissions_of(settings, name)
    user, known, vhost = options.user or user, BrokerUser("", may, limits), vhost_of(url)
    bounded = options.ferry != "own" and not options.agent
    made = definitions_of(settings, name, user, known, vhost=vhost, bounded=bounded)
    if form == "json":
        lines = [json.dumps(made, indent=2)]
    elif form == "rabbitmqctl":
        lines = _control_lines(made, user, vhost, limits)
    else:
        lines = _sentences(known, user, vhost)
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def need_service_mode(settings: Settings, verb: str) -> None:
    """Raise OperationRefused for an embedded berth, whose cells are those of its settings."""
    if settings.embedded:
        raise OperationRefused(
            f"there is nothing to {verb}: an embedded berth has the cells of its settings (`cells`), all in"
            " one process; with amqp_url each cell has a RabbitMQ user and a database. `disable`,"
            " `enable` and `drain` work here, too"
        )


def user_of(settings: Settings, cell: str) -> str:
    """Return the RabbitMQ user of a cell."""
    return f"{settings.bus.exchange}-{cell}"


def ferry_user_of(settings: Settings, cell: str) -> str:
    """Return the name of a ferry's RabbitMQ user, which contains a dot, unlike the names of cells' users."""
    return f"{user_of(settings, cell)}.ferry"


def agent_user_of(settings: Settings, cell: str, agent: str) -> str:
    """Return the RabbitMQ user of an agent of a cell."""
    return f"{user_of(settings, cell)}.agent.{agent}"


def database_of(settings: Settings) -> str:
    """Return the name of the PostgreSQL database in the settings (default: berth), or "" for SQLite."""
    url = settings.database.url
    if not url.startswith("postgresql"):
        return ""
    return re.sub(r"[?#].*", "", url).rpartition("/")[2] or "berth"


def login_of(settings: Settings, cell: str) -> str:
    """Return the name of a cell's PostgreSQL login, which is also its database's name; "" for SQLite."""
    ours = database_of(settings)
    return f"{ours}_{cell}" if ours else ""


def edit_of(edit: RegisterCell | DropCell) -> CellEditRequested:
    """Return the request to edit a cell; raise BadSetting if a value is invalid."""
    return checked(CellEditRequested(edit=edit))


def check_name(name: str) -> None:
    """Raise BadSetting if a cell cannot have this name."""
    edit_of(RegisterCell(cell=name))


def check_agent(name: str) -> None:
    """Raise BadSetting if an agent cannot have this name."""
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
        raise BadSetting(f"agent {name!r}: takes a name of at most 64 letters, digits, _ and -")


def check_identifiers(settings: Settings, name: str) -> None:
    """Raise BadSetting if a cell's name is invalid, or makes its login or schema too long for PostgreSQL."""
    check_name(name)
    if login := login_of(settings, name):
        longest = max((login, composition.store_of(worker_roles.Role("conductor", name))), key=len)
        if (excess := len(longest.encode()) - _IDENTIFIER_BYTES) > 0:
            raise BadSetting(
                f"cell {name!r}: PostgreSQL allows names of {_IDENTIFIER_BYTES} bytes, and {longest!r} would"
                f" have {len(longest.encode())}: take a name of at most {len(name) - excess} characters"
            )


def limits_of(settings: Settings) -> UserLimits:
    """Return the limits of a cell's RabbitMQ user."""
    limits = settings.cell_limits
    return UserLimits(limits.connections, limits.channels, limits.queue_bytes)


def limits_of_agent(settings: Settings) -> UserLimits:
    """Return the limits of an agent's RabbitMQ user on connections, channels and the bytes of its queues."""
    return UserLimits(connections=10, channels=200, queue_bytes=settings.cell_limits.queue_bytes)


def permissions_of(settings: Settings, cell: str, agents: Sequence[str] = ()) -> Permissions:
    """Return the permissions of a cell's RabbitMQ user: for its conductor, and for the named agents."""
    tables = [
        composition.tables_of_conductor(cell),
        *(composition.tables_of_agent(cell, agent) for agent in agents),
    ]
    return of_cell(cell, [worker for table in tables for worker in table], settings.bus.exchange)


def permissions_of_agent(settings: Settings, cell: str, agent: str, *, metal: bool = False) -> Permissions:
    """Return the RabbitMQ permissions of an agent: only the topics and queries of its workers."""
    return of_cell(cell, composition.tables_of_agent(cell, agent, metal=metal), settings.bus.exchange)


def ferry_permissions(settings: Settings, cell: str, *, at_cell_broker: bool) -> Permissions:
    """Return the RabbitMQ permissions of the ferry between the brokers of the centre and of the cell."""
    return of_ferry(
        composition.crossings_of(cell), at_cell_broker=at_cell_broker, exchange=settings.bus.exchange
    )


def definitions_of(
    settings: Settings, cell: str, user: str, known: BrokerUser, *, vhost: str = "", bounded: bool = True
) -> dict[str, Any]:
    """Return RabbitMQ definitions that create the user `user` with the password, permissions and limits in
    `known`; `bounded` adds a policy that limits the bytes in queues to which only `cell` publishes.

    If `vhost` is "", the virtual host is that of the central broker's URL.
    """
    where, exchange = vhost or vhost_of(settings.bus.amqp_url), settings.bus.exchange
    floods = {flood_policy(cell, exchange): filled_by(cell, exchange)} if bounded else {}
    return definitions({user: known}, floods, where, settings.cell_limits.queue_bytes)


def _control_lines(made: Mapping[str, Any], user: str, vhost: str, limits: UserLimits | None) -> list[str]:
    commands = [
        ["set_permissions", user, permission["configure"], permission["write"], permission["read"]]
        for permission in made["permissions"]
    ]
    for permission in made["topic_permissions"]:
        commands.append(
            ["set_topic_permissions", user, permission["exchange"], permission["write"], permission["read"]]
        )
    for permission in made["policies"]:
        order = ["--priority", str(permission["priority"]), "--apply-to", permission["apply-to"]]
        policy = [permission["name"], permission["pattern"], json.dumps(permission["definition"])]
        commands.append(["set_policy", *order, *policy])
    lines = [f"# first: rabbitmqctl add_user {shlex.quote(user)}   (it asks for the password)"]
    if limits:
        lines.append(shlex.join(["rabbitmqctl", "set_user_limits", user, json.dumps(limits.of_user)]))
    return lines + [shlex.join(["rabbitmqctl", name, "-p", vhost, *rest]) for name, *rest in commands]


def _sentences(known: BrokerUser, user: str, vhost: str) -> list[str]:
    may, limits = known.permissions, known.limits
    lines = [f"RabbitMQ user {user}, virtual host {vhost}"]
    if limits is not None:
        lines += ["limits", *(f"  {name} {value}" for name, value in limits.of_user.items())]
        lines.append(f"  bytes in each of its queues {limits.queue_bytes}")
    of_queues = ("make", may.configure), ("write to", may.write), ("read", may.read)
    sections: list[tuple[str, Sequence[tuple[str, str]]]] = [("queues and exchanges", of_queues)]
    sections += [
        (f"keys of {keys.exchange}", (("publish", keys.write), ("bind", keys.read))) for keys in may.keys
    ]
    for title, patterns in sections:
        lines.append(title)
        for heading, pattern in patterns:
            lines += [f"  {heading}", *(f"    {alternative}" for alternative in _alternatives(pattern))]
    return lines


def _alternatives(pattern: str) -> list[str]:
    """Return the alternatives of a regular expression such as ^(a|b|(c|d))$, to print each on a line."""
    if pattern == "^$":
        return ["nothing"]
    found, depth, begin = [], 0, 2
    for at, sign in enumerate(pattern):
        depth += (sign == "(") - (sign == ")")
        if (sign == "|" and depth == 1) or (sign == ")" and depth == 0):
            found.append(pattern[begin:at])
            begin = at + 1
    return found
