"""Lists on the command line: tables whose columns, order and form the caller chooses.

A command that lists takes a `ListCli`, and so has the options `--output`, `--columns`, `--sort`, `--watch`.
"""

import asyncio
import re
import sys
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from berth.kit.terminal import Cli, console, say, write_json
from berth.settings import BadSetting
from bus import parts
from bus.clock import Clock, moment_text
from bus.masking import printable

FORMS = ("table", "wide", "json", "yaml", "name")
WATCH_SECONDS = 2.0  # between two lists of `--watch`

_UNLIMITED = 10_000  # characters of a line of `-o wide` outside of a terminal

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_DIGITS = re.compile(r"(\d+)")

Row = Sequence[object]


class PlainTable(Table):
    """A table without borders and markup. It keeps its rows, so that they can be sorted and their columns
    chosen when it is printed.
    """

    def __init__(
        self,
        titles: Sequence[str],
        lines: Sequence[Row],
        folded: Collection[str] | None,
        wide: Collection[str],
    ) -> None:
        super().__init__(box=None, pad_edge=False)
        self.titles, self.lines, self.folded, self.wide = titles, lines, folded, wide
        for title in titles:
            if folded is None or title in folded:
                self.add_column(title, overflow="ellipsis" if folded is None else "fold")
            else:
                self.add_column(title, no_wrap=True)
        for line in lines:
            self.add_row(*(cell if isinstance(cell, Text) else Text(printable(str(cell))) for cell in line))

    @property
    def usual(self) -> Sequence[str]:
        """Return the titles of the columns that are shown without a choice."""
        return [title for title in self.titles if title not in self.wide]

    def of(self, titles: Sequence[str]) -> "PlainTable":
        """Return this table with the named columns, in this sequence."""
        at = [self.titles.index(title) for title in titles]
        lines = [[line[index] for index in at] for line in self.lines]
        return PlainTable(titles, lines, self.folded, ())


def plain_table(
    titles: Iterable[str],
    rows: Iterable[Iterable[object]],
    folded: Collection[str] | None = None,
    wide: Collection[str] = (),
) -> PlainTable:
    """Return a table without borders and markup. Only columns in `folded` wrap text (None: all columns).
    A list shows the columns in `wide` only with `-o wide`, or if `--columns` names them.
    """
    return PlainTable([*titles], [[*row] for row in rows], folded, wide)


@dataclass(frozen=True)
class Ranked:
    """A cell of a table with the value by which the column is sorted."""

    text: str
    by: float

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Listing:
    """The options of a list: one of FORMS, the titles of its columns (none: the usual ones), and the title of
    the column by which it is sorted, after a minus in falling order ("": the sequence of the command).
    """

    form: str = "table"
    columns: tuple[str, ...] = ()
    sort: str = ""

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise BadSetting(f"--output {self.form}: it is one of {', '.join(FORMS)}")
        if self.columns and self.is_data:
            raise BadSetting(f"--columns chooses the columns of a table; -o {self.form} prints all fields")

    @property
    def is_data(self) -> bool:
        return self.form in {"json", "yaml"}

    def table_of(self, table: PlainTable) -> PlainTable:
        """Return the columns of a table that are shown."""
        for title in self.columns:
            _check(title, "--columns", table.titles)
        return table.of(self.columns or (table.titles if self.form == "wide" else table.usual))

    def order_of(self, table: PlainTable) -> list[int]:
        """Return the positions of the rows of a table in the sequence in which they are shown."""
        positions = [*range(len(table.lines))]
        if not self.sort:
            return positions
        title = self.sort.removeprefix("-")
        _check(title, "--sort", table.titles)
        at = table.titles.index(title)
        return sorted(positions, key=lambda row: sort_key(table.lines[row][at]), reverse=title != self.sort)


def _check(title: str, option: str, titles: Sequence[str]) -> None:
    if title not in titles:
        raise BadSetting(f"{option} {title}: the columns are {', '.join(titles)}")


def sort_key(cell: object) -> tuple[int, float, list[tuple[int, str]]]:
    """Return the key by which a cell is sorted: nothing (-), then numbers by value, then texts, in which
    numbers count by value: host-9 before host-10.
    """
    if isinstance(cell, Ranked):
        return 1, cell.by, []
    if isinstance(cell, int | float):
        return 1, float(cell), []
    text = str(cell)
    if text in {"", "-", "–"}:
        return 0, 0.0, []
    if found := _NUMBER.match(text):
        return 1, float(found[0]), [(0, text)]
    parts_of_text = _DIGITS.split(text)
    return 2, 0.0, [(int(part), "") if part.isdigit() else (0, part) for part in parts_of_text]


@dataclass(frozen=True)
class ListCli(Cli):
    """Prints a list in the form that the options name."""

    listing: Listing = Listing()

    def rows(self, found: Iterable[Any], table: RenderableType) -> None:
        """Print a record of `found`, or a row of `table`, for each object. A `table` that is a text says that
        there is none. The rows of a `PlainTable` are those of `found`, in the same sequence.
        """
        records, listing = [*found], self.listing
        if isinstance(table, PlainTable):
            order = listing.order_of(table)
            lines = [table.lines[row] for row in order]
            if len(records) == len(table.lines):
                records = [records[row] for row in order]
            table = listing.table_of(PlainTable(table.titles, lines, table.folded, table.wide))
        if listing.form == "yaml":
            write_yaml(records)
        elif listing.form == "name":
            for line in table.lines if isinstance(table, PlainTable) else ():
                self.line(printable(str(line[0])))
        elif self.as_json:
            for record in records:
                write_json(record)
        else:
            wide = listing.form == "wide" and not self.say.is_terminal
            printer = console(self.say.file, _UNLIMITED) if wide else self.say
            printer.print(table)


def write_yaml(records: Sequence[Any]) -> None:
    """Print records as a list in YAML."""
    plain = msgspec.json.decode(parts.encoder().encode(records))
    sys.stdout.write(msgspec.yaml.encode(plain).decode())


async def repeated(list_once: Callable[[], Coroutine[Any, Any, int | None]]) -> None:
    """Print a list every two seconds until Ctrl-C; in a terminal each list takes the place of the last."""
    while True:
        say.clear()
        await list_once()
        say.print(f"{moment_text(Clock().now())}, every {WATCH_SECONDS:g} s; Ctrl-C ends it", style="dim")
        await asyncio.sleep(WATCH_SECONDS)
