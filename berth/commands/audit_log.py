"""`berth audit log`: lists the audit trail, what operators and programs requested of berth."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import get_args

from berth.kit.command_groups import Commands
from berth.kit.listing import ListCli, plain_table
from berth.kit.options import option
from berth.kit.publishing import checked
from berth.kit.short_ids import short
from berth.kit.timeline import acts_found
from berth.kit.times import seconds_since
from berth.settings import BadSetting
from bus.acts import is_undoable
from bus.audit_trail import ActRecord, FindActs, Interface, Outcome, Role
from bus.clock import Clock

_SHOWN = 50  # records by default; with --json all

commands = Commands()


@dataclass(frozen=True)
class ActFilters:
    since: str = option("7d", "Only acts of this time, such as 90s, 30m or 2d.")
    until: str = option("0s", "Only acts before this time ago, such as 1h.")
    operator: str = option("", "Only acts of this user, client or service.")
    role: str = option("", "Only acts under this role: reader, operator or admin.")
    interface: str = option(
        "", "Only acts by this interface: command, 'control room', 'placement api', rest or bus."
    )
    act: str = option("", "Only this act, such as boot or 'mark host'; docs/roles.md lists all.")
    target: str = option("", "Only acts on this build, host, project or other object: its id or name.")
    project: str = option("", "Only acts on objects of this project, or with a token of it.")
    request: str = option("", "Only acts of the command or HTTP request with this id.")
    outcome: str = option("", "Only acts with this outcome: done, refused, denied, failed or started.")


@commands.command("log")
async def audit_log_command(
    cli: ListCli,
    filters: ActFilters,
    limit: int | None = option(None, f"The number of acts, the latest first.  [default: {_SHOWN}]", min=1),
) -> None:
    """List what operators, clients and services requested: who, what, before and after, when, from where.

    The list includes refused and denied acts. "started" means that the outcome is unknown: the process ended
    before it recorded the outcome. With --json every field of all matching acts is printed, one act a line.
    """
    for name, known in (("outcome", Outcome), ("role", Role), ("interface", Interface)):
        given = getattr(filters, name)
        if given not in ("", *get_args(known)):
            raise BadSetting(f"--{name} {given!r}: it is {', '.join(filter(None, get_args(known)))}")
    now = Clock().now()
    question = checked(
        FindActs(
            **vars(filters)
            | {"since": now - seconds_since(filters.since), "until": now - seconds_since(filters.until)}
        )
    )
    most = limit or (None if cli.as_json else _SHOWN)
    found, more = list[ActRecord](), False
    async with cli.bus("audit-log") as bus:
        async for record in acts_found(bus, question):
            if more := len(found) == most:
                break
            found.append(record)
    cli.rows(found, plain_table(_TITLES, map(_row, found), folded=_TITLES[-2:]) if found else "no acts")
    if not cli.as_json and any(map(is_undoable, found)):
        cli.line("`berth audit undo ID` undoes an edit that had a former value", "dim")
    if more and not cli.as_json:
        cli.line("there are more: --limit, or the filters, show them", "dim")


_TITLES = ("id", "time (UTC)", "operator", "role", "from", "act", "outcome", "target", "change or reason")


def _row(record: ActRecord) -> tuple[str, ...]:
    operator = record.operator
    place = f"{record.through or record.interface}, {record.origin}" if record.origin else record.interface
    target = f"{record.name} ({record.target})" if record.name else record.target
    change = f"{record.before or '{}'} → {record.after or '{}'}" if record.before or record.after else ""
    what = record.detail or change or record.asked
    when = f"{datetime.fromtimestamp(record.at, UTC):%Y-%m-%d %H:%M:%S}"
    return (
        short(record.id),
        when,
        operator.name,
        operator.role,
        place,
        record.act,
        record.outcome,
        target,
        what[:300],
    )
