"""`berth policy priority`: priority classes, by which requests preempt instances of lower priority."""

from dataclasses import dataclass
from typing import Annotated

from berth.kit import ActCli, BadSetting, Cli, Commands, ListCli, checked, option, plain_table, positional
from bus.delivery.runner import Bus
from bus.errors import OperationRefused
from bus.vocabulary import Taken, seconds_of
from features.preemption.messages import (
    EDIT_PRIORITY,
    PRIORITIES,
    FindPriorities,
    PriorityClass,
    PriorityEdited,
    PriorityEditRequested,
    SetPriority,
    UnsetPriority,
)

commands = Commands(name="priority", no_args_is_help=True)

Name = Annotated[str, positional("The name of the class.", metavar="NAME")]


@dataclass(frozen=True, kw_only=True)
class PriorityClassOptions:
    """The options of a priority class, as an operator enters them."""

    value: int = option(0, "The priority of its requests.", min=0, max=9)
    preempts: bool = option(
        False, "Its requests that fit no host delete instances of lower priority.", "--preempts/--never"
    )
    budget: int = option(
        0, "At most so many instances are deleted in one hour for each project; 0: no limit.", min=0
    )
    grace: str = option("", "Time for its instances to stop before they are deleted: 30s, 5m.")
    requeue: bool = option(False, "Its preempted instances are shelved and get another host later.")


@commands.command("set")
async def set_command(cli: Cli, name: Name, options: PriorityClassOptions) -> None:
    """Name a priority, and set what its requests may preempt and how its instances are preempted.

    Requests state a priority with `berth boot --priority`. `berth request what-if --preempt` shows the
    instances that would be deleted. Example: `berth policy priority set production --value 7 --preempts
    --budget 20`.
    """
    try:
        seconds = seconds_of(options.grace)
    except (ValueError, KeyError):
        raise BadSetting(f"--grace {options.grace}: it is a number with s, m or h, such as 30s") from None
    priority = PriorityClass(name=name, **vars(options) | {"grace": seconds})
    async with cli.bus("priority") as bus:
        stored = await _edit(bus, SetPriority(priority=priority))
    cli.value(stored, f"{name}: priority {options.value}")


@commands.command("delete")
async def unset_command(cli: ActCli, name: Name) -> None:
    """Remove a priority class. Requests of its priority preempt nothing any more."""
    edit, after = UnsetPriority(name=name), ""
    async with cli.bus("priority") as bus:
        if cli.dry_run:
            classes = (await bus.asker(PRIORITIES)(FindPriorities())).classes
            removed = next((each for each in classes if each.name == name), None)
            if removed is None:
                raise _missing(name)
            await bus.rehearse(PriorityEditRequested(edit=edit))
            after = f"; requests of priority {removed.value} would preempt nothing"
        else:
            removed = await _edit(bus, edit)
    cli.value(removed, f"{name}: {cli.becomes('removed')}{after}")


@commands.command("list")
async def show(cli: ListCli) -> None:
    """Show the priority classes."""
    async with cli.bus("priority") as bus:
        found = (await bus.asker(PRIORITIES)(FindPriorities())).classes
    titles = ("name", "priority", "preempts", "budget per hour", "grace", "requeue")
    rows = [
        (
            each.name,
            str(each.value),
            "lower priorities" if each.preempts else "never",
            str(each.budget or "unlimited") if each.preempts else "",
            f"{each.grace:g} s",
            "yes" if each.requeue else "no",
        )
        for each in found
    ]
    cli.rows(list(found), plain_table(titles, rows) if rows else "no priority classes")


async def _edit(bus: Bus, edit: SetPriority | UnsetPriority) -> PriorityClass:
    result = (await bus.asker(EDIT_PRIORITY)(checked(PriorityEditRequested(edit=edit)))).result
    if isinstance(result, PriorityEdited):
        return result.priority
    if isinstance(result, Taken):
        raise OperationRefused(f"another class has priority {result.value}")
    raise _missing(*result.names)


def _missing(*names: str) -> OperationRefused:
    return OperationRefused(f"there is no priority class {', '.join(names)}")
