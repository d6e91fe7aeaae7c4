"""`berth system bundle` writes a support bundle."""

import os
import platform
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from berth.commands.settings_options import Cells, Processes, state_directories
from berth.kit.command_groups import Commands, Json, StateDir
from berth.kit.options import option
from berth.kit.running import effective
from berth.kit.terminal import Cli, complain, say
from bus.clock import Clock
from bus.masking import printable

commands = Commands()


@dataclass(frozen=True)
class DebugOptions:
    output: str = option("", "The file, or - (default: berth-debug-MACHINE-TIME.tar.gz).", metavar="FILE")
    seconds: float = option(10.0, "Sample the stacks of each process for so long; 0: do not.", min=0, max=60)
    management: str = option("", "RabbitMQ's management API, as for `berth doctor`.", metavar="URL")


@commands.command("bundle")
async def debug_command(
    options: DebugOptions,
    processes: Processes = None,
    as_json: Json = False,
    cells: Cells = None,
    state_dir: StateDir = None,
) -> None:
    """Write a support bundle: versions, settings without passwords, findings of `berth doctor`, sizes and
    statements of databases, dead letters without bodies, and of each process on this machine its metrics,
    last warnings and sampled stacks.

    Parts that cannot be had are listed as missing. Read the bundle before you pass it on: it contains names
    of hosts, ids of projects and reasons of failures.
    """
    from berth.support.bundle import collect  # imports all clients of services

    found = effective(cells=cells, state_dir=state_dir)
    cli = Cli(found.settings, as_json, say)
    stamp = datetime.fromtimestamp(Clock().now(), UTC).strftime("%Y%m%dT%H%M%SZ")
    name = f"berth-debug-{platform.node()}-{stamp}"
    path = Path(options.output or f"{name}.tar.gz")
    bundle = await collect(
        found,
        seconds=options.seconds,
        directories=state_directories(found, processes),
        management=options.management,
    )
    if options.output == "-":
        cli = Cli(found.settings, as_json=False, say=complain)
        sys.stdout.buffer.write(bundle.archive(name))
    else:
        _write(path, bundle.archive(name))
    facts = {"file": str(path), "files": sorted(bundle.files), "missing": bundle.missing}
    lines = [f"{path}: {len(bundle.files)} files", *(f"missing: {printable(why)}" for why in bundle.missing)]
    cli.tell("\n".join(lines), **facts)


def _write(path: Path, content: bytes) -> None:
    """Write a new file that only its owner may read."""
    with open(path, "xb", opener=lambda file, flags: os.open(file, flags, 0o600)) as file:
        file.write(content)
