"""Options that several commands have."""

from typing import Annotated

import typer

Cells = Annotated[str | None, typer.Option(help="Names of the cells, comma separated, or how many.")]
Hosts = Annotated[int | None, typer.Option(min=1, help="Simulated hosts, over all cells.")]
Driver = Annotated[
    str | None,
    typer.Option(help="Kinds of hosts, dealt out: flat, numa, sriov, vgpu, devices, or of compute_machines."),
]
Fail = Annotated[
    float | None, typer.Option(min=0, max=1, help="Share of builds that fail on their first host.")
]
MoveFail = Annotated[
    float | None, typer.Option(min=0, max=1, help="Share of each phase of moves that fails.")
]
MoveTime = Annotated[
    str | None, typer.Option(help="How long each phase of a move takes, as --build-time (default: the same).")
]
BuildTime = Annotated[
    str | None,
    typer.Option(help="How long a build takes: constant:1, uniform:1,3, exponential:0.2, lognormal:1,0.5."),
]
StateDir = Annotated[
    str | None, typer.Option(help="Where the embedded berth keeps its state (default: .berth).")
]
Seed = Annotated[int | None, typer.Option(help="Seed of the simulated faults.")]
Json = Annotated[bool, typer.Option("--json", help="Say it as JSON.")]
Vcpus = Annotated[int | None, typer.Option(min=0, help="VCPU of each instance (default: 1).")]
MemoryMb = Annotated[int | None, typer.Option(min=0, help="Memory of each instance (default: 512).")]
DiskGb = Annotated[int | None, typer.Option(min=0, help="Disk of each instance (default: 1).")]
Http = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="Serve the Placement API there (default: nowhere).")
]
Bus = Annotated[
    str | None, typer.Option(metavar="URL|local", help="The RabbitMQ; `local`: placement alone, with --http.")
]
Database = Annotated[str | None, typer.Option(metavar="URL", help="PostgreSQL, or SQLite in a file.")]
Room = Annotated[
    str | None,
    typer.Option(
        "--control-room",
        metavar="HOST:PORT|off",
        help="Serve the page of operators there (default: 127.0.0.1:8780, or any free port).",
    ),
]
Auth = Annotated[str | None, typer.Option(help="Whom the Placement API believes: noauth2 or tokens.")]
Tokens = Annotated[str | None, typer.Option(metavar="FILE", help="The tokens it believes.")]
Policy = Annotated[str | None, typer.Option(metavar="FILE", help="Its rules, where not the default ones.")]


def drivers_named(given: str | None) -> tuple[str, ...] | None:
    """Return the names of --driver, or None without the option."""
    return None if given is None else tuple(part.strip() for part in given.split(",") if part.strip())


def cells_named(given: str | None) -> tuple[str, ...] | None:
    """Return the cells of --cells, given as names or as a number, or None without the option."""
    if given is None:
        return None
    if given.isdigit():
        return tuple(f"c{number}" for number in range(1, int(given) + 1))
    return tuple(part.strip() for part in given.split(",") if part.strip())
