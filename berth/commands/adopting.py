"""`berth adopt`: instances that came over from another system become builds of the cells they are in."""

import asyncio
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from msgspec.structs import replace
from rich.console import Console

from berth import wiring
from berth.adoptable import Judged, judge
from berth.commands.asking_cells import ask_cells, known_cells, named
from berth.commands.host_states import host_named
from berth.commands.options import Json, StateDir
from berth.commands.terminal import checked, complain, effective, printable, run, say, write_json
from berth.commands.whereabouts import uuid_of
from berth.old_servers import OldServer, old_servers
from berth.publishing import publish
from berth.settings import BadSetting, Settings
from bus import topics
from bus.chunks import portions
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.guests import BuildAdopted, BuildAdoptRequested
from bus.queries import FindBuilds
from bus.resources import Consumer, FindAllocations, FindProviders, Provider

PAGE = 500  # providers, or consumers, of one question
_BUILDS = 100  # of one question to a cell
_SECONDS = 30.0  # an answer may take

commands = typer.Typer()


@commands.command("adopt")
def adopt_command(
    consumers: Annotated[
        list[str] | None, typer.Argument(metavar="[UUID]...", help="These instances, by their uuids.")
    ] = None,
    hosts: Annotated[
        list[str] | None, typer.Option("--host", metavar="HOST", help="All that came over on this host.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All that came over, wherever they are.")] = False,
    file: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="FILE",
            help="What the old system says of them (uuid, name, host, flavor, project), as .json, .yaml or"
            " .csv. Alone it also says which.",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without this it is only shown.")] = False,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait for the cells' answers.")] = 60.0,
    as_json: Json = False,
    state_dir: StateDir = None,
) -> None:
    """Adopt instances that placement knows from another system, so that they can be moved and deleted.

    After `berth import placement` and `berth provider reset` their hosts belong to a cell, but the instances
    are not builds: only their allocations are counted. An adopted instance is an active build of its cell:
    it is listed, moved, drained, evacuated, resized and deleted like any other, and the agent of its host
    knows it.

    Only unambiguous instances are adopted: on one host of one cell, according to placement and, if given,
    the file. All others are listed with the reason. The command can be repeated.

    `berth adopt --all --from servers.csv`, then the same with --yes. See docs/adopting.md.
    """
    if everything + bool(hosts) + bool(consumers) > 1:
        raise BadSetting("say which in one way: uuids, --host, or --all")
    if not (everything or hosts or consumers or file):
        raise BadSetting("say which: uuids, --host HOST, --all, or --from FILE")
    servers = old_servers(file) if file is not None else {}
    wanted = [uuid_of(consumer, "an instance") for consumer in consumers or ()]
    if not (everything or hosts or wanted):
        wanted = [*servers]
    settings = effective(state_dir=state_dir).settings
    run(adopt(settings, wanted, hosts or (), servers, yes, timeout, as_json, say))


async def adopt(
    settings: Settings,
    wanted: Sequence[str],
    hosts: Sequence[str],
    servers: dict[str, OldServer],
    yes: bool,
    timeout: float,
    as_json: bool,
    say: Console,
) -> int:
    async with Bus(wiring.transport(settings, "adopt")) as bus:
        found = await (_these(bus, wanted) if wanted else _on_hosts(bus, hosts))
        known = await _known(bus, settings, found)
        providers = await _providers(
            bus, {id_ for consumer in found.values() for id_ in consumer.allocations}
        )
        foreign = settings.ironic.nodes.agents.values()
        judged = [Judged(id_, why="placement knows nobody of this id") for id_ in wanted if id_ not in found]
        for id_, consumer in sorted(found.items()):
            if id_ not in known:
                judged.append(
                    judge(consumer, providers, servers.get(id_), named=id_ in wanted, foreign=foreign)
                )
        requests = [one.request for one in judged if one.request is not None]
        outcomes = await _ask(bus, requests, timeout) if yes else {}
    return _tell(judged, known, outcomes, yes, as_json, say)


# Which


async def _these(bus: Bus, wanted: Sequence[str]) -> dict[str, Consumer]:
    ask = bus.asker(topics.ALLOCATIONS, timeout=_SECONDS)
    found: dict[str, Consumer] = {}
    for some in portions(wanted, PAGE):
        found |= {
            consumer.id: consumer for consumer in (await ask(FindAllocations(consumers=some))).consumers
        }
    return found


async def _on_hosts(bus: Bus, hosts: Sequence[str]) -> dict[str, Consumer]:
    """Return imported consumers with allocations on the hosts, or on any provider without hosts."""
    ids: list[str] = []
    ask = bus.asker(topics.PROVIDERS, timeout=_SECONDS)
    for host in hosts:
        root = await host_named(bus, host)
        ids += [provider.id for provider in (await ask(FindProviders(in_tree=root.id, parts=()))).providers]
    after, more = "", not hosts
    while more:
        page = (await ask(FindProviders(parts=(), after=after, limit=PAGE))).providers
        ids += [provider.id for provider in page]
        after, more = max((provider.id for provider in page), default=""), len(page) == PAGE
    holders: dict[str, None] = {}
    holding = bus.asker(topics.ALLOCATIONS, timeout=_SECONDS)
    for some in portions(ids, PAGE):
        there = (await holding(FindAllocations(providers=some))).consumers
        holders |= {consumer.id: None for consumer in there if consumer.client}
    return await _these(bus, [*holders])


async def _known(bus: Bus, settings: Settings, found: Iterable[str]) -> dict[str, str]:
    """Return the ids that are builds of a cell already, with their state."""
    cells, silent = await known_cells(bus, settings), set[str]()
    find = bus.asker(topics.FIND_BUILDS, timeout=5.0)
    known: dict[str, str] = {}
    for some in portions(sorted(found), _BUILDS):
        answers, deaf = await ask_cells(
            [one for one in cells if one not in silent],
            lambda cell, some=some: find(FindBuilds(cell=cell, builds=some)),  # type: ignore[misc]
        )
        silent |= {*deaf}
        for cell, answer in answers.items():
            known |= {
                build.build: f"{build.status} on {build.host} in cell {cell}" for build in answer.builds
            }
    if silent:
        complain.print(f"[yellow]note[/yellow]: did not answer: {named(sorted(silent))}")
    return known


async def _providers(bus: Bus, ids: Collection[str]) -> dict[str, Provider]:
    ask = bus.asker(topics.PROVIDERS, timeout=_SECONDS)
    found: dict[str, Provider] = {}
    for some in portions(sorted(ids), PAGE):
        answer = await ask(FindProviders(ids=some, parts=("traits", "owner")))
        found |= {provider.id: provider for provider in answer.providers}
    return found


# Doing it


async def _ask(bus: Bus, requests: Sequence[BuildAdoptRequested], timeout: float) -> dict[str, BuildAdopted]:
    """Return the cells' replies. A cell without a reply in time may have adopted the instance all the
    same.
    """
    outcomes: dict[str, BuildAdopted] = {}
    if not requests:
        return outcomes
    reply_to = f"adopt-{Clock().uuid()[:8]}"
    heard = await bus.listen(topics.BUILD_ADOPTED.at(reply_to=reply_to))
    for at in range(0, len(requests), _BUILDS):
        some = [checked(replace(request, reply_to=reply_to)) for request in requests[at : at + _BUILDS]]
        await publish(bus, *some)
    try:
        async with asyncio.timeout(timeout):
            while len(outcomes) < len(requests):
                told = await heard.get()
                outcomes[told.build] = told
    except TimeoutError:
        pass
    return outcomes


def _tell(
    judged: Sequence[Judged],
    known: dict[str, str],
    outcomes: dict[str, BuildAdopted],
    yes: bool,
    as_json: bool,
    say: Console,
) -> int:
    """0 when all that was meant is a build of its cell by now, or would be."""
    listed = {one.consumer: one.why for one in judged if one.request is None}
    adopted: dict[str, BuildAdoptRequested] = {}
    for request in (one.request for one in judged if one.request is not None):
        told = outcomes.get(request.build)
        if yes and told is None:
            listed[request.build] = f"cell {request.cell} has not answered yet: say the same again"
        elif told is not None and told.outcome == "refused":
            listed[request.build] = told.why
        else:
            adopted[request.build] = request
    if as_json:
        write_json({
            "adopted" if yes else "adoptable": [_shown(request) for request in adopted.values()],
            "listed": listed,
            "known": known,
        })  # fmt: skip
        return 1 if listed else 0
    for request in adopted.values():
        verb = "adopted" if yes else "would be adopted"
        say.print(f"{verb}: {printable(_sentence(request))}", markup=False)
    for id_, how in sorted(known.items()):
        say.print(f"{id_}: is a build already, {printable(how)}", style="dim", markup=False)
    for id_, why in sorted(listed.items()):
        say.print(f"for you to judge: {id_}: {printable(why)}", style="red", markup=False)
    if not (adopted or known or listed):
        say.print("nobody came over who is not a build yet")
    elif adopted and not yes:
        say.print("the same with --yes adopts them", style="dim")
    return 1 if listed else 0


def _sentence(request: BuildAdoptRequested) -> str:
    spec, chosen = request.spec, request.chosen
    called = f" {spec.name}" if spec.name else ""
    amounts: dict[str, int] = {}
    for resources in chosen.choice.allocations.values():
        for name, amount in resources.items():
            amounts[name] = amounts.get(name, 0) + amount
    holds = ", ".join(f"{amount} {name}" for name, amount in sorted(amounts.items()))
    return f"{request.build}{called} on {chosen.host} in cell {request.cell} ({holds})"


def _shown(request: BuildAdoptRequested) -> dict[str, str]:
    spec = request.spec
    return {
        "build": request.build,
        "name": spec.name,
        "cell": request.cell,
        "host": request.chosen.host,
        "flavor": spec.flavor.name,
        "project": spec.project,
    }
