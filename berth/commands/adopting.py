"""`berth adopt`: instances that came over from another system become builds of the cells they are in."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from berth.commands.options import Commands, argument, option
from berth.commands.terminal import Cli, note, write_json
from berth.operations.adoptable import old_servers
from berth.operations.adopting import Adoptable, AdoptionOutcome, adopt_instances
from berth.operations.cells import uuid_of
from berth.settings import BadSetting
from bus.guests import BuildAdoptRequested
from bus.masking import printable

commands = Commands()


@dataclass(frozen=True)
class AdoptOptions:
    """The options of berth adopt."""

    consumers: list[str] | None = argument(None, "These instances, by their uuids.", metavar="[UUID]...")
    hosts: list[str] | None = option(None, "All that came over on this host.", "--host", metavar="HOST")
    everything: bool = option(False, "All that came over, wherever they are.", "--all")
    file: Path | None = option(
        None,
        "What the old system says of them (uuid, name, host, flavor, project), as .json, .yaml or"
        " .csv. Alone it also says which.",
        "--from",
        metavar="FILE",
    )
    yes: bool = option(False, "Do it; without this it is only shown.")
    timeout: float = option(60.0, "Seconds to wait for the cells' answers.", min=0)


@commands.command("adopt")
async def adopt_command(cli: Cli, options: AdoptOptions) -> int:
    """Adopt instances that placement knows from another system, so that they can be moved and deleted.

    After `berth import placement` and `berth provider reset` their hosts belong to a cell, but the instances
    are not builds: only their allocations are counted. An adopted instance is an active build of its cell:
    it is listed, moved, drained, evacuated, resized and deleted like any other, and the agent of its host
    knows it.

    Only unambiguous instances are adopted: on one host of one cell, according to placement and, if given,
    the file. All others are listed with the reason. The command can be repeated.

    `berth adopt --all --from servers.csv`, then the same with --yes. See docs/adopting.md.
    """
    if options.everything + bool(options.hosts) + bool(options.consumers) > 1:
        raise BadSetting("say which in one way: uuids, --host, or --all")
    if not (options.everything or options.hosts or options.consumers or options.file):
        raise BadSetting("say which: uuids, --host HOST, --all, or --from FILE")
    servers = old_servers(options.file) if options.file is not None else {}
    wanted = [uuid_of(consumer, "an instance") for consumer in options.consumers or ()]
    if not (options.everything or options.hosts or wanted):
        wanted = [*servers]
    which = Adoptable(wanted, options.hosts or (), servers)
    async with cli.bus("adopt") as bus:
        timeout = options.timeout if options.yes else None
        found = await adopt_instances(bus, cli.settings, which, timeout, note)
    return _tell(cli, found, options.yes)


def _tell(cli: Cli, found: AdoptionOutcome, yes: bool) -> int:
    """Print the result of an adoption; return 1 if an instance could not be adopted."""
    adopted, listed, known = found.adopted, found.refused, found.known
    if cli.as_json:
        write_json({
            "adopted" if yes else "adoptable": [_shown(request) for request in adopted.values()],
            "listed": listed,
            "known": known,
        })  # fmt: skip
        return 1 if listed else 0
    for request in adopted.values():
        verb = "adopted" if yes else "would be adopted"
        cli.line(f"{verb}: {printable(_sentence(request))}")
    for id_, how in sorted(known.items()):
        cli.line(f"{id_}: is a build already, {printable(how)}", "dim")
    for id_, why in sorted(listed.items()):
        cli.line(f"for you to judge: {id_}: {printable(why)}", "red")
    if not (adopted or known or listed):
        cli.say.print("nobody came over who is not a build yet")
    elif adopted and not yes:
        cli.say.print("the same with --yes adopts them", style="dim")
    return 1 if listed else 0


def _sentence(request: BuildAdoptRequested) -> str:
    spec, chosen = request.spec, request.chosen
    called = f" {spec.name}" if spec.name else ""
    amounts: Counter[str] = Counter()
    for resources in chosen.choice.allocations.values():
        amounts.update(resources)
    holds = ", ".join(f"{amount} {name}" for name, amount in sorted(amounts.items()))
    return f"{request.build}{called} on {chosen.host} in cell {request.cell} ({holds})"


def _shown(request: BuildAdoptRequested) -> dict[str, str]:
    spec, where = request.spec, {"cell": request.cell, "host": request.chosen.host}
    of = {"flavor": spec.flavor.name, "project": spec.project}
    return {"build": request.build, "name": spec.name, **where, **of}
