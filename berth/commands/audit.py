"""`berth audit`: the promises, checked from the databases."""

import json
import sys
from typing import Annotated

import typer
from rich.console import Console

from berth.audit import Audit, audit
from berth.commands.options import Cells, Json, StateDir, cells_named
from berth.commands.terminal import effective, run, say
from berth.settings import Settings

commands = typer.Typer()


@commands.command("audit", rich_help_panel="Look and check")
def audit_command(
    as_json: Json = False,
    settled: Annotated[
        bool, typer.Option("--settled", help="No boot is under way: everything must add up now.")
    ] = False,
    cells: Cells = None,
    state_dir: StateDir = None,
) -> None:
    """Check from the databases that nothing is over-allocated, doubled or without an owner; else exit 1."""
    settings = effective(cells=cells_named(cells), state_dir=state_dir).settings
    run(audit_and_say(settings, settled, as_json, say))


async def audit_and_say(settings: Settings, settled: bool, as_json: bool, say: Console) -> int:
    found = await audit(settings, settled=settled)
    if as_json:
        sys.stdout.write(
            json.dumps(
                {"clean": found.clean, "breaches": found.breaches, "consumers": found.consumers,
                 "builds": found.builds}, indent=2) + "\n"
        )  # fmt: skip
    else:
        show_audit(found, say)
    return 0 if found.clean else 1


def show_audit(found: Audit, say: Console) -> None:
    builds = ", ".join(f"{count} {status}" for status, count in sorted(found.builds.items())) or "none"
    verdict = "[green]clean[/green]" if found.clean else f"[red]{len(found.breaches)} breaches[/red]"
    say.print(f"audit: {verdict}; {found.consumers} consumers hold resources; builds: {builds}")
    for breach in found.breaches[:50]:
        say.print(f"  {breach}", style="red", markup=False)
