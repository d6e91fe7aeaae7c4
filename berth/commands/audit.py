"""Defines three commands: `berth audit check` compares allocations with builds and capacities, `berth audit
heal` makes repairs that the records of cells and agents justify, `berth doctor` shows the list of problems
and checks the installation.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from rich.console import Console

from berth.commands.settings_options import Cells, Database, Processes, state_directories
from berth.doctor.judgement import exit_code, judged
from berth.kit.command_groups import Commands, Json, StateDir
from berth.kit.findings import Finding
from berth.kit.options import option
from berth.kit.running import effective
from berth.kit.terminal import Cli, say, write_json
from berth.operations.audit import Audit, audit, has_no_cell
from berth.operations.guest_differences import compare_guests
from berth.operations.guest_repairs import RetiredChoice
from berth.operations.healing import repaired
from berth.settings import BadSetting
from bus.masking import printable

_MOST = 50  # sentences shown of each list

commands = Commands()


@dataclass(frozen=True)
class AuditOptions:
    settled: bool = option(False, "No boot is under way: everything must add up now.")
    placement_only: bool = option(False, "Only placement's data, for a placement without cells.")
    agents: bool = option(False, "Ask every agent which guests it has, too, as after a restore.")


@commands.command("check")
async def audit_command(
    options: AuditOptions,
    as_json: Json = False,
    cells: Cells = None,
    database: Database = None,
    state_dir: StateDir = None,
) -> int:
    """Check the databases: exit 1 if an allocation exceeds its inventory, exists twice, or has no owner.

    Allocations of consumers that are no builds (claimed over HTTP, imported, migrations) are listed as notes.
    Without a cell only placement is checked. Agents are queried only while a berth runs.
    """
    given = effective(cells=cells, database_url=database, state_dir=state_dir)
    settings = given.settings
    placement_only = options.placement_only or ("cells" not in given.origins and await has_no_cell(settings))
    found = await audit(settings, settled=options.settled, placement_only=placement_only)
    if options.agents and not placement_only:
        guests = await compare_guests(settings)
        found.breaches += map(str, guests.differences)
        found.notes += guests.notes
    if as_json:
        facts = {
            "clean": found.clean, "breaches": found.breaches, "notes": found.notes,
            "consumers": found.consumers, "builds": found.builds, "types": found.types,
            "of_others": found.of_other_owners, "custom_classes": found.classes,
        }  # fmt: skip
        sys.stdout.write(json.dumps(facts, indent=2) + "\n")
    else:
        show_audit(found, say)
    return 0 if found.clean else 1


def show_audit(found: Audit, console: Console) -> None:
    """Print the counts of an audit and the breaches that it found."""
    builds = ", ".join(f"{count} {status}" for status, count in sorted(found.builds.items())) or "none"
    named = {"CLEANUP": "clean-ups", "MIGRATION": "migrations"}
    types = sorted((type_, count) for type_, count in found.types.items() if type_ != "INSTANCE")
    kinds = [
        f"{count} {named.get(type_, type_)}" for type_, count in types
    ]  # notes about consumers that are no builds
    kinds += [f"{found.of_other_owners} instances of other owners"] if found.of_other_owners else []
    further = f" ({', '.join(kinds)})" if kinds else ""
    verdict = "[green]clean[/green]" if found.clean else f"[red]{len(found.breaches)} breaches[/red]"
    console.print(f"audit: {verdict}; {found.consumers} consumers hold resources{further}; builds: {builds}")
    if found.classes:
        used = ", ".join(f"{name} {used} of {total} used" for name, (used, total) in found.classes.items())
        console.print(f"  custom classes: {used}", style="dim", markup=False)
    for sentences, style in ((found.breaches, "red"), (found.notes, "dim")):
        for sentence in sentences[:_MOST]:
            console.print(f"  {sentence}", style=style, markup=False)
        if len(sentences) > _MOST:
            console.print(f"  ... and {len(sentences) - _MOST} more: see --json", style=style, markup=False)


_RETIRED: dict[str, RetiredChoice] = {"": "", "adopt": "adopt", "destroy": "destroy"}


@commands.command("heal")
async def heal(
    yes: bool = option(False, "Mend it; without this it is only shown."),
    retired: str = option(
        "",
        "What becomes of a guest without a build whose id placement has retired: adopt or destroy.",
        metavar="adopt|destroy",
    ),
    as_json: Json = False,
    cells: Cells = None,
    database: Database = None,
    state_dir: StateDir = None,
) -> int:
    """Repair a finding of `berth audit check` if the repair is proven to be right; list other findings for
    the operator.

    Allocations of a holder consumer are released if the build's cell reports that the move or clean-up has
    ended and that no guest is left behind. An active build's lost allocations are claimed again if they fit,
    unless the host's agent contradicts the cell's record. Allocations on another host, or of other amounts,
    are replaced only if cell and agent agree, and no agent reports a guest on the other host. Builds in
    progress, in a move or changed during the audit stay unchanged.

    On a running berth all agents are queried for their guests. If a build without any record has exactly one
    guest, the guest's cell adopts the build, and missing allocations are claimed. A guest of a build that
    runs on another host, or that was deleted, is destroyed. If all agents answer and none has a guest of a
    build, an active build is deleted, and the allocations of an ended or unrecorded build are released.
    If placement has retired the id of such a guest, because commits were lost and a later delivery of its
    request ended as unplaceable, nothing shows what is right: the guests are listed, and `--retired` chooses.
    If several cells know a build, it stays in the cell that has its allocations and its guest, and is deleted
    in the others.

    Exit 0 if no finding remains, else 1. See docs/running.md.
    """
    settings = effective(cells=cells, database_url=database, state_dir=state_dir).settings
    choice = _RETIRED.get(retired)
    if choice is None:
        raise BadSetting(f"--retired {retired}: adopt or destroy")
    found = await audit(settings)
    proven, doubts = await repaired(settings, found, yes, choice)
    known = {repair.sentence for repair in proven} | doubts.keys()
    listed = {**doubts, **{sentence: "" for sentence in found.breaches if sentence not in known}}
    if as_json:
        repairs = [{"is": repair.sentence, "would": repair.would, "mended": repair.did} for repair in proven]
        write_json({"proven": repairs, "listed": [_with_why(*item) for item in listed.items()]})
    else:
        for repair in proven:
            say.print(f"{repair.did or f'would be {repair.would}'}: {repair.sentence}", markup=False)
        for doubted in listed.items():
            say.print(f"for you to judge: {_with_why(*doubted)}", style="red", markup=False)
        if not proven and not listed:
            say.print("nothing is wrong")
        elif proven and not yes:
            say.print("`berth audit heal --yes` repairs confirmed differences", style="dim")
    return 0 if not listed and all(repair.done for repair in proven) else 1


def _with_why(sentence: str, why: str) -> str:
    return f"{sentence}; {why}" if why else sentence


_COLOURS = {"broken": "red", "warning": "yellow", "fine": "green"}


@commands.command("doctor")
async def doctor_command(
    as_json: Json = False,
    management: str = option(
        "",
        "RabbitMQ's management API, for nodes, feature flags, deprecated features and the clock"
        " (default: where it usually is).",
        metavar="URL",
    ),
    upgrade: bool = option(False, "Check whether this version can replace the running one."),
    processes: Processes = None,
    cells: Cells = None,
    state_dir: StateDir = None,
) -> int:
    """Show the list of `berth problems`, and check services, databases and migrations of the installation.

    The check changes nothing and takes seconds. Exit code 0 without problems, 1 if something needs attention,
    2 if a problem is critical or something is broken.

    With --upgrade: check settings, services, databases and their pending migrations, and versions of
    processes. Run it with the new version before the upgrade. Exit code 0: the upgrade can begin; 1:
    something needs attention before; 2: the upgrade would fail.
    """
    found = effective(cells=cells, state_dir=state_dir)
    cli = Cli(found.settings, as_json, say)
    if not upgrade:
        return await examine(cli, management)
    from berth.support.upgrade import upgrade_findings  # imports all clients of services

    return report_findings(cli, await upgrade_findings(found, state_directories(found, processes)))


async def examine(cli: Cli, management: str = "") -> int:
    """Inspect services, databases and workers, print the findings, and return the exit code."""
    from berth.doctor.looking import inspect  # imports all clients of services

    return report_findings(cli, judged(await inspect(cli.settings, management=management)))


def report_findings(cli: Cli, found: Sequence[Finding]) -> int:
    """Print findings in the given order; return 0 if all is fine, 1 with warnings, 2 with broken parts."""
    code = exit_code(found)
    if cli.as_json:
        write_json({"exit_code": code, "findings": msgspec.to_builtins(found)})
        return code
    for finding in found:
        cli.say.print(f"{finding.level:8}", style=_COLOURS[finding.level], end="")
        do = f" {finding.do}" if finding.do else ""
        cli.line(f"{printable(finding.about)}: {printable(finding.says)}{printable(do)}")
    many = {level: sum(finding.level == level for finding in found) for level in _COLOURS}
    warnings = "1 warning" if many["warning"] == 1 else f"{many['warning']} warnings"
    counts = f"{many['broken']} broken, {warnings}, {many['fine']} fine."
    cli.line(counts if code else "All is well.")
    return code
