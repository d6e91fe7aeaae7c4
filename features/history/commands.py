"""`berth audit at TIME`: shows the state of placement at a past time, and decisions as of then."""

from collections import Counter
from dataclasses import replace
from typing import Annotated

import typer
from msgspec import structs

from berth.kit import (
    Cli,
    Commands,
    ExplainedId,
    KnownRecords,
    known_records,
    plain_table,
    positional,
    provider_tree,
    show_records,
    whole_id,
)
from bus.clock import Clock, moment_text
from bus.errors import OperationRefused
from bus.masking import printable
from bus.replication import ConsumerChange
from bus.vocabulary import capacity_of, totals
from control_room.kit import amounts_text, several
from features.history.past import PastCloud
from features.history.reading import PastTime, StateHistory, moment_of, providers_of
from placement_worker.extension import Tree

commands = Commands()
at = Commands(name="at", no_args_is_help=True)
commands.add_typer(at)


@at.callback()
def at_time(
    context: typer.Context,
    time: Annotated[
        str,
        positional(
            "2026-03-29T14:30 (UTC, or an offset), how long ago (90s, 30m, 12h, 7d), or a change number.",
            metavar="TIME",
        ),
    ],
) -> None:
    """Read the state of placement at a past time."""
    context.obj = moment_of(time, Clock().now())


async def state_at(cli: Cli, moment: PastTime) -> PastCloud:
    """Return the state of placement at a past time."""
    async with cli.bus("at") as bus:
        return await StateHistory(bus, moment).state()


def show_heading(cli: Cli, cloud: PastCloud, moment: PastTime) -> None:
    """Print the last change before a past time, except with --json."""
    if not cli.as_json:
        last = f"change {cloud.number} of {moment_text(cloud.at)}"
        cli.line(f"{moment.text}: the last change was {last}", "dim")


@at.command("show")
async def show(
    context: typer.Context,
    cli: Cli,
    name: Annotated[
        str,
        positional(
            "A host or provider (name or uuid), or the uuid of an instance or another consumer.",
            metavar="NAME",
        ),
    ] = "",
) -> None:
    """Show what a host or provider had, or what an instance held. Without NAME, show the usage of all hosts.

    Example: `berth audit at 2h show host-7` lists the instances that host-7 had two hours ago.
    """
    moment: PastTime = context.obj
    cloud = await state_at(cli, moment)
    show_heading(cli, cloud, moment)
    if not name:
        _show_all(cli, cloud)
        return
    consumer, trees = cloud.consumers.get(name.lower()), cloud.named(name)
    if consumer is None and not trees:
        raise OperationRefused(f"there was no host, provider or consumer {name} at that time")
    if consumer is not None:
        _show_consumer(cli, cloud, consumer)
    for tree in trees:
        _show_tree(cli, cloud, tree)


def _show_all(cli: Cli, cloud: PastCloud) -> None:
    used, capacity = Counter[str](), Counter[str]()
    hosts = 0
    for tree in cloud.trees():
        hosts += 1
        for provider in tree.providers:
            used.update(provider.used)
            for class_, has in provider.inventories.items():
                capacity[class_] += capacity_of(has.total, has.reserved, has.allocation_ratio)
    types = Counter(consumer.type or "unknown" for consumer in cloud.consumers.values())
    facts = {
        "number": cloud.number, "at": cloud.at, "roots": hosts, "consumers": dict(types),
        "used": dict(used), "capacity": dict(capacity),
    }  # fmt: skip
    listed = ", ".join(f"{number} {type_}" for type_, number in sorted(types.items())) or "none"
    cli.value(facts, printable(f"{several(hosts, 'provider tree')}; consumers: {listed}"))
    if not cli.as_json:
        rows = [(name, used[name], amount, amount - used[name]) for name, amount in sorted(capacity.items())]
        cli.say.print(plain_table(("class", "used", "capacity", "free"), rows))


def _show_consumer(cli: Cli, cloud: PastCloud, consumer: ConsumerChange) -> None:
    names = ", ".join(sorted(tree.host or tree.providers[0].name for tree in cloud.trees_of(consumer)))
    held = amounts_text(sorted(totals(consumer.allocations).items()))
    about = f"{consumer.type or 'consumer'} of project {consumer.project}"
    cli.value(
        {"consumer": structs.asdict(consumer), "hosts": names},
        printable(f"{consumer.consumer}  {about}, on {names}: {held}"),
    )


def _show_tree(cli: Cli, cloud: PastCloud, tree: Tree) -> None:
    providers, consumers = providers_of(tree), cloud.on(tree)
    if cli.as_json:
        cli.value({"providers": providers, "consumers": consumers}, "")
        return
    owner = f"  {tree.agent} in cell {tree.cell}" if tree.agent else "  no agent reports it"
    cli.say.print(provider_tree(providers, owner))
    rows, uuids = [], tree.uuids
    for each in sorted(consumers, key=lambda each: each.consumer):
        here = {id_: held for id_, held in each.allocations.items() if id_ in uuids}
        held = amounts_text(sorted(totals(here).items()))
        rows.append((each.consumer, each.type or "-", each.project, held))
    if rows:
        cli.say.print(plain_table(("consumer", "type", "project", "holds"), rows))


@at.command("why")
async def why(context: typer.Context, cli: Cli, build: ExplainedId) -> None:
    """Explain a decision as of a past time: attempts, moves and refusals after that time are left out.

    The allocations of the instance at that time, and the usage of its host, come from the history of
    placement; the decision comes from the records of cells and schedulers.
    """
    moment: PastTime = context.obj
    async with cli.bus("at") as bus:
        id_ = await whole_id(bus, cli.settings, build, "a build, request or move")
        cloud = await StateHistory(bus, moment).state()
        known = await known_records(cli.settings, bus, id_)
    then = moment.at if moment.number is None else cloud.at
    show_heading(cli, cloud, moment)
    consumer = cloud.consumers.get(id_)
    trees = [] if consumer is None else cloud.trees_of(consumer)
    past = _as_of(known, then, trees[0].host if trees else "")
    if not (past.stands or past.subject or past.decided.known):
        raise OperationRefused(f"{id_} was not decided yet at that time")
    if consumer is not None:
        _show_consumer(cli, cloud, consumer)
    elif known.stands and not cli.as_json:
        cli.line(f"{id_} held nothing at that time: it was not placed yet, or deleted already", "yellow")
    show_records(cli, past)
    for tree in trees if not cli.as_json else ():
        _show_tree(cli, cloud, tree)


def _as_of(known: KnownRecords, then: float, host: str) -> KnownRecords:
    """Return the records about a build, request or move as of the time `then`; `host` is the name of the
    instance's host at that time, or ""."""
    stands = []
    for build in known.stands:
        if not host and build.attempts and build.attempts[0].started > then:
            continue
        over = tuple(attempt for attempt in build.attempts if attempt.ended <= then)
        if host:
            built = bool(over) and over[-1].outcome == "built"
            build = structs.replace(build, host=host, status="active" if built else "building", reason="")
        stands.append(structs.replace(build, attempts=over))
    decided = known.decided if known.decided.at <= then else structs.replace(known.decided, known=False)
    return replace(
        known,
        stands=tuple(stands),
        decided=decided,
        explained=tuple(each for each in known.explained if each.at <= then),
    )
