"""`berth instance adopt`: makes cells responsible for another system's instances."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from berth.kit import BadSetting, Cli, Commands, argument, note, option, uuid_of, write_json
from bus.masking import printable
from features.adoption.adoptable import old_servers
from features.adoption.messages import BuildAdoptRequested
from features.adoption.requesting import Adoptable, AdoptionOutcome, adopt_instances

commands = Commands()


@dataclass(frozen=True)
class AdoptOptions:
    consumers: list[str] | None = argument(None, "Instances, by uuid.", metavar="[UUID]...")
    hosts: list[str] | None = option(None, "All that came over on this host.", "--host", metavar="HOST")
    everything: bool = option(False, "All that came over, wherever they are.", "--all")
    file: Path | None = option(
        None,
        "Data of the old system (uuid, name, host, flavor, project), as .json, .yaml or .csv. Without "
        "other options all its instances are adopted.",
        "--from",
        metavar="FILE",
    )
    yes: bool = option(False, "Do it; without this it is only shown.")
    timeout: float = option(60.0, "Seconds to wait for the cells' answers.", min=0)


@commands.command("adopt")
async def adopt_command(cli: Cli, options: AdoptOptions) -> int:
    """Make berth responsible for another system's instances in placement, to move and delete them.

    After `berth openstack import placement` and `berth resource provider reset` the hosts belong to a cell,
    but the instances are no builds: berth only counts their allocations. An adopted instance is an active
    build of its cell, which the commands list, move, drain, evacuate, resize and delete like any other. The
    cell also informs the agent of the instance's host.

    The command adopts only unambiguous instances: on one host of one cell, according to placement and the
    file, if one is given. It lists all other instances with the reason, and can be repeated.

    `berth instance adopt --all --from servers.csv`, then the same with --yes. See
    features/adoption/README.md.
    """
    if options.everything + bool(options.hosts) + bool(options.consumers) > 1:
        raise BadSetting("choose instances in one way: uuids, --host, or --all")
    if not (options.everything or options.hosts or options.consumers or options.file):
        raise BadSetting("give uuids, --host HOST, --all, or --from FILE")
    servers = old_servers(options.file) if options.file is not None else {}
    wanted = [uuid_of(consumer, "an instance") for consumer in options.consumers or ()]
    if not (options.everything or options.hosts or wanted):
        wanted = [*servers]
    selection = Adoptable(wanted, options.hosts or (), servers)
    async with cli.bus("adopt") as bus:
        timeout = options.timeout if options.yes else None
        found = await adopt_instances(bus, cli.settings, selection, timeout, note)
    return _print_adopted(cli, found, options.yes)


def _print_adopted(cli: Cli, found: AdoptionOutcome, yes: bool) -> int:
    """Print which instances were adopted or, without `yes`, would be; return 1 if some cannot be, else 0."""
    adopted, listed, known = found.adopted, found.refused, found.known
    if cli.as_json:
        write_json({
            "adopted" if yes else "adoptable": [_facts(request) for request in adopted.values()],
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
        cli.say.print("there is no imported instance that is not a build yet")
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


def _facts(request: BuildAdoptRequested) -> dict[str, str]:
    spec, where = request.spec, {"cell": request.cell, "host": request.chosen.host}
    of = {"flavor": spec.flavor.name, "project": spec.project}
    return {"build": request.build, "name": spec.name, **where, **of}
