"""`berth database`: moves a database to another PostgreSQL server while workers use it."""

import asyncio
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Annotated

from berth.commands.options import Commands, described, option, positional, url_or_file
from berth.commands.terminal import Cli, progress_bar
from features.database_copy.copying import copying, make_tables
from features.database_copy.live_copy import LiveCopy

_POLL_SECONDS = 0.5

commands = Commands(name="database", no_args_is_help=True)

New = Annotated[
    str, positional("URL of the new database as workers will use it, or a file that holds it.", metavar="NEW")
]

Replace = Annotated[
    bool, described("Delete all rows of NEW first, such as those of an abandoned copy.", "--replace")
]


@dataclass(frozen=True)
class CopyOptions:
    cell: str = option("", "The separate database of this cell.", metavar="NAME")
    old_admin: str = option(
        "", "Administrator of the old database: URL or file (default: database_url).", metavar="URL"
    )
    new_admin: str = option("", "Superuser of the new database: URL or file (default: NEW).", metavar="URL")


@commands.command("copy")
async def copy_command(cli: Cli, new: New, options: CopyOptions, *, replace: Replace = False) -> None:
    """Copy the database to NEW, and keep the copy current while workers continue.

    The old server needs `wal_level = logical`. The new server makes a subscription, so it must reach the old
    one at the host and port of its URL. Both URLs may be given as files, because other users of this machine
    see a command's arguments. Ctrl-C ends only the display; `berth database switch` completes the move and
    `berth database abandon` cancels it.
    """
    await make_tables(cli.settings, url_or_file(new), cell=options.cell)
    async with _copy(cli, new, options) as copy:
        await copy.begin(replace=replace)
        with progress_bar(not cli.as_json) as bar:
            shown = bar.add_task("tables", total=None)
            while not (progress := await copy.progress()).is_current:
                bar.update(shown, completed=progress.copied, total=progress.tables)
                await asyncio.sleep(_POLL_SECONDS)
        cli.value(progress, f"{progress.tables} tables are copied, and each new commit follows")


@commands.command("progress")
async def progress_command(cli: Cli, new: New, options: CopyOptions) -> int:
    """Show how many tables are copied, and how far NEW is behind. Exit 1 until all tables are copied."""
    async with _copy(cli, new, options) as copy:
        progress = await copy.progress()
    cli.value(progress, f"{progress.copied} of {progress.tables} tables copied, {progress.lag} bytes behind")
    return 0 if progress.is_current else 1


@commands.command("switch")
async def switch_command(cli: Cli, new: New, options: CopyOptions) -> None:
    """Make the old database read-only, and copy its last commits to NEW.

    Workers fail to write from then on, and try again, until they are restarted with the new URL; no message
    is lost. If NEW cannot be completed, the old database is writable again.
    """
    async with _copy(cli, new, options) as copy:
        rows = await copy.switch()
    setting = f"cell_database_urls of {options.cell}" if options.cell else "database_url"
    cli.value(
        rows,
        f"{sum(rows.values())} rows in {len(rows)} tables are equal; the old database is read-only now."
        f" Set {setting} to the new URL and restart all workers",
    )


@commands.command("abandon")
async def abandon_command(cli: Cli, new: New, options: CopyOptions) -> None:
    """Cancel a move: end the copy, and make the old database writable. NEW keeps its rows.

    After `berth database switch` do this only if no worker has used the new database: its commits would be
    lost.
    """
    async with _copy(cli, new, options) as copy:
        await copy.abandon()
    cli.tell("the old database is writable, and is not copied any more")


def _copy(cli: Cli, new: str, options: CopyOptions) -> AbstractAsyncContextManager[LiveCopy]:
    return copying(
        cli.settings,
        url_or_file(new),
        cell=options.cell,
        old_admin=url_or_file(options.old_admin),
        new_admin=url_or_file(options.new_admin),
    )
