"""Messages that query and edit cells in placement. A cell that was never registered is enabled."""

from typing import Annotated

from msgspec import Meta, field

from bus.vocabulary import (
    END,
    Cause,
    Contended,
    LargeMap,
    LongList,
    Message,
    Missing,
    Ordinal,
    Tagged,
    Text,
    Value,
    Whole,
    Word,
)


class RegisteredCell(Value, frozen=True, kw_only=True):
    """A cell as operators registered it: enabled or disabled, with a note."""

    name: Word
    enabled: bool = True  # False: no new instances
    note: Cause = ""
    gone: bool = False  # deleted; published once


Note = Annotated[str, Meta(max_length=1000)]
NewCell = Annotated[  # no leading "-", which marks reply addresses outside of a cell, such as `reply.-c1.`
    str,
    Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_-]{0,63}" + END, description="a name that does not begin with -"),
]


class RegisterCell(Tagged, frozen=True, kw_only=True):
    """An edit that registers a cell or changes its registration; omitted fields keep their values."""

    cell: NewCell
    enabled: bool | None = None  # None: unchanged; a new cell is enabled
    note: Note | None = None


class DropCell(Tagged, frozen=True, kw_only=True):
    """An edit that deletes a cell with its hosts; `force`: even if hosts have allocations, which remain."""

    cell: Word
    force: bool = False


CellEdit = RegisterCell | DropCell


class CellEdited(Tagged, frozen=True, kw_only=True):
    """The reply to a successful edit of a cell: its new state, or `gone` if the edit deleted it."""

    cell: RegisteredCell
    number: Whole = 0  # change number; 0: nothing changed


class CellInUse(Tagged, frozen=True, kw_only=True):
    """The refusal to delete a cell that has instances or whose agents still report hosts; the cell stays
    disabled.
    """

    cell: Text
    instances: Whole  # number of consumers with allocations on the cell's hosts
    hosts: Whole = 0  # number of hosts that agents reported during the deletion

    def __str__(self) -> str:
        if self.instances == 1:
            held = "1 consumer has allocations on its hosts"
        elif self.instances:
            held = f"{self.instances} consumers have allocations on its hosts"
        else:
            held = f"its agents still report {self.hosts} hosts"
        return f"cell {self.cell} is not empty: {held}"


CellResult = CellEdited | CellInUse | Missing | Contended


class FindCells(Message, frozen=True, kw_only=True):
    """A query for the registered cells, and for unregistered cells whose agents have reported hosts."""

    counted: bool = True  # also return unregistered cells, and each cell's numbers of hosts and instances


class CellsFound(Message, frozen=True, kw_only=True):
    """All registered cells, with the numbers of their hosts and instances."""

    seen: Ordinal  # the answer includes all changes up to this change number
    cells: LongList[RegisteredCell]  # sorted by name
    hosts: LargeMap[Text, Whole] = field(default_factory=dict)  # cell → number of hosts, if any
    # cell → number of consumers with allocations
    instances: LargeMap[Text, Whole] = field(default_factory=dict)


class CellEditRequested(Message, frozen=True, kw_only=True):
    edit: CellEdit


class CellEditAnswered(Message, frozen=True, kw_only=True):
    result: CellResult
