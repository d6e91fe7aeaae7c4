"""Defines `berth project share`: the weights by which projects share capacity while requests wait."""

from typing import Annotated

from berth.kit import ActCli, BadSetting, Commands, ListCli, checked, option, plain_table, positional
from bus import topics
from bus.delivery.runner import Bus
from bus.queries import FindWaiting
from bus.vocabulary import Value
from features.waiting.messages import DEFAULT, EDIT_WEIGHT, NAME_OF_DEFAULT, WeightEdited, WeightEditRequested

commands = Commands(name="share", no_args_is_help=True)

_HIGHEST_WEIGHT = 10**6


class FairShare(Value, frozen=True, kw_only=True):
    """A project's weight, its requests in the backlog, and its fraction of the resources served recently."""

    project: str
    weight: int = 1
    backlog: int = 0
    share: float = 0.0


_PROJECT = "The project's id; `default`: all projects without a weight of their own."
Project = Annotated[str, positional(_PROJECT, metavar="PROJECT")]


@commands.command("set")
async def set_command(
    cli: ActCli,
    project: Project,
    weight: Annotated[
        str, positional("A number; `default`: the weight of all other projects.", metavar="WEIGHT")
    ],
) -> None:
    """Set the weight of a project: with weight 3 it is served three times as much as one with weight 1.

    The weight counts only while more requests arrive than are placed. Schedulers apply it within 2 seconds.
    """
    of, number = _project_to_edit(project), None if weight == NAME_OF_DEFAULT else _weight(weight)
    async with cli.bus("share") as bus:
        if cli.dry_run:
            weights = {each.project: each.weight for each in await fair_shares(bus)}
            now = weights.get(of, weights.get(DEFAULT, 1))
            await bus.rehearse(checked(WeightEditRequested(project=of, weight=number)))
            facts = {"project": of, "before": now, "weight": number}
            cli.tell(f"{project}: weight {weight if number else 'would be deleted'}, now {now}", **facts)
            return
        edited = await set_weight(bus, of, number)
    cli.value(edited, f"{project}: weight {weight if number else 'deleted'}")


def _weight(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= _HIGHEST_WEIGHT:
        raise BadSetting(f"weight {text}: a number from 1 to {_HIGHEST_WEIGHT:,}, or `{NAME_OF_DEFAULT}`")
    return int(text)


@commands.command("list")
async def show(
    cli: ListCli,
    project: Annotated[str, positional("Only this project.", metavar="[PROJECT]")] = "",
    backlogged: bool = option(False, "Only projects with requests in the backlog."),
) -> None:
    """Show the weights of projects, how many of their requests are in the backlog, and how much was served.

    The share is a project's part of the resources of all requests that were evaluated in the last minute.
    """
    async with cli.bus("share") as bus:
        shares = await fair_shares(bus)
    named = [each for each in shares if project in ("", each.project or NAME_OF_DEFAULT)]
    found = [each for each in named if each.backlog or not backlogged]
    rows = [
        (
            each.project or NAME_OF_DEFAULT,
            each.weight,
            each.backlog or "",
            f"{each.share:.0%}" if each.share else "",
        )
        for each in found
    ]
    titles = ("project", "weight", "backlog", "share")
    cli.rows(found, plain_table(titles, rows) if rows else "all projects have weight 1, and no backlog")


def _project_to_edit(name: str) -> str:
    """Return the id of a project, or "" for `default`. Raise BadSetting for an empty name: it must not change
    the weight of all projects.
    """
    if not name:
        raise BadSetting(f"no project is named; {NAME_OF_DEFAULT!r} means all projects without a weight")
    return DEFAULT if name == NAME_OF_DEFAULT else name


async def set_weight(bus: Bus, project: str, weight: int | None) -> WeightEdited:
    """Set the weight of a project ("": of all without one), or delete it if `weight` is None."""
    request = checked(WeightEditRequested(project=project, weight=weight))
    return (await bus.asker(EDIT_WEIGHT)(request)).result


async def fair_shares(bus: Bus) -> list[FairShare]:
    """Return the fair share of each project that has a weight, has requests in the scheduler's backlog, or
    was recently served from it, sorted by id; "" is the default weight's entry.
    """
    waiting = await bus.asker(topics.WAITING)(FindWaiting(limit=1))
    weight_of = waiting.weights
    return [
        FairShare(
            project=project,
            weight=weight_of.get(project, weight_of.get(DEFAULT, 1)),
            backlog=waiting.backlog.get(project, 0),
            share=waiting.shares.get(project, 0.0),
        )
        for project in sorted(weight_of.keys() | waiting.backlog.keys() | waiting.shares.keys())
    ]
