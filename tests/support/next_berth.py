"""Workers of a synthetic next version: a copy of this code with more columns, tables and message fields."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.berth_processes import ROOT

PACKAGES = (
    "berth",
    "bus",
    "cell_conductor",
    "compute_sim",
    "control_room",
    "features",
    "ironic_sync",
    "placement_worker",
    "scheduler_worker",
)
# package → table to which the next version's migration adds a column; it also adds a table
COLUMNS = {"placement_worker": "consumers", "scheduler_worker": "queued", "cell_conductor": "builds"}
MIGRATION = '''
"""Add a column and a table."""

import sqlalchemy as sa
from alembic import op

revision = "9999_next"
down_revision = "{last}"


def upgrade() -> None:
    op.add_column("{table}", sa.Column("next_column", sa.Text, nullable=False, server_default="x"))
    op.create_table("next_table", sa.Column("id", sa.Text, primary_key=True))
'''
# messages of bus/messages.py that have an additional field in the next version
MESSAGES = ("BuildRequested", "BuildPlaced", "BuildOrdered", "BuildEnded", "HostReported", "SchedulerAlive")
_WORKERS = """
import asyncio, json, signal, sys
from rich.console import Console
from berth import composition, worker_roles
from berth.commands.run import migrate_all
from berth.settings import Settings

asked = json.loads(sys.argv[1])
assert composition.__file__.startswith(asked["tree"]), composition.__file__
settings = Settings().having(**asked["settings"])


async def main():
    await migrate_all(settings, Console(quiet=True))
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    async with asyncio.TaskGroup() as group:
        for worker, cell in asked["roles"]:
            role = worker_roles.Role(worker, cell)
            way = composition.way_of([role], settings)
            group.create_task(composition.serve([role], settings, way, stopping))
        print("up", flush=True)


asyncio.run(main())
"""


def next_version(tree: Path) -> Path:
    """Make the next version in this folder."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tree / package, ignore=shutil.ignore_patterns("__pycache__"))
    for package, table in COLUMNS.items():
        migrations = tree / package / "migrations"
        last = max(file.stem for file in migrations.glob("[0-9]*.py"))
        (migrations / "9999_next.py").write_text(MIGRATION.format(table=table, last=last))
    for message in MESSAGES:
        _add_field(tree / "bus" / "messages.py", f"class {message}(")
    return tree


def _add_field(file: Path, message: str) -> None:
    """Give the message a field that is always sent, because its value is not a constant default."""
    before, head, rest = file.read_text().partition(message)
    assert head, f"{file.name} has no {message}"
    body, end, after = rest.partition("\n\n\n")
    field = '\n    next_field: list[str] = __import__("msgspec").field(default_factory=lambda: ["x"])'
    file.write_text(before + head + body + field + end + after)


@contextmanager
def workers_of(
    tree: Path, roles: Sequence[tuple[str, str]], settings: Mapping[str, Any], log: Path
) -> Iterator[subprocess.Popen[str]]:
    """Migrate with the code of the tree, and run these workers until the end of the block."""
    asked = json.dumps({"tree": str(tree), "roles": roles, "settings": settings})
    environment = {key: value for key, value in os.environ.items() if not key.startswith("BERTH_")}
    with log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", _WORKERS, asked],
            cwd=tree,
            env={**environment, "PYTHONPATH": str(tree)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "up\n", log.read_text()
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
