"""What can be asked of placement about cells, and what it answers.

A cell that nobody registered is enabled: its hosts are candidates as soon as they are reported.
"""

from typing import Annotated

from msgspec import Meta, field

from bus.not_done import Contended, Missing
from bus.vocabulary import END, Cause, LargeMap, LongList, Message, Ordinal, Tagged, Text, Value, Whole, Word


class RegisteredCell(Value, frozen=True, kw_only=True):
    """A cell as operators have it. One that nobody registered is as a new one: enabled."""

    name: Word
    enabled: bool = True  # may anything new be placed there?
    note: Cause = ""
    gone: bool = False  # told once, when it is dropped


Note = Annotated[str, Meta(max_length=1000)]
NewCell = Annotated[  # of c1, `-c1` is where the answers go to who asks it from outside
    str,
    Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_-]{0,63}" + END, description="a word that does not begin with -"),
]


# Edits


class RegisterCell(Tagged, frozen=True, kw_only=True):
    """Enter it, or say something else of it; what is None stays. Done twice, it is one."""

    cell: NewCell
    enabled: bool | None = None  # None: as it was, enabled when it is new
    note: Note | None = None


class DropCell(Tagged, frozen=True, kw_only=True):
    """It is no more, and its hosts are gone. With `force` also while they have instances: these keep what
    they hold until somebody gives it back."""

    cell: Word
    force: bool = False


CellEdit = RegisterCell | DropCell


# Outcomes


class CellEdited(Tagged, frozen=True, kw_only=True):
    """Done; the cell as it is now, `gone` when it was dropped."""

    cell: RegisteredCell
    number: Whole = 0  # the change that made it so; 0: it was so already


class CellInUse(Tagged, frozen=True, kw_only=True):
    """It is closed, and stays."""

    cell: Text
    instances: Whole  # who hold something there: or what is left of them
    hosts: Whole = 0  # that were reported while the others went

    def __str__(self) -> str:
        if self.instances == 1:
            held = "1 instance, or what is left of it, is on its hosts"
        elif self.instances:
            held = f"{self.instances} instances, or what is left of them, are on its hosts"
        else:
            held = f"its agents go on reporting {self.hosts} hosts"
        return f"cell {self.cell} is not empty: {held}"


CellResult = CellEdited | CellInUse | Missing | Contended


# Questions and answers


class FindCells(Message, frozen=True, kw_only=True):
    """All cells: those that are registered, and those that somebody reported hosts of."""

    counted: bool = True  # how much is in each, too; False: the registered alone


class CellsFound(Message, frozen=True, kw_only=True):
    seen: Ordinal  # the last change this answer knows of
    cells: LongList[RegisteredCell]  # by their names
    hosts: LargeMap[Text, Whole] = field(default_factory=dict)  # cell → hosts in it, if there are any
    instances: LargeMap[Text, Whole] = field(default_factory=dict)  # cell → how many hold something there


class CellEditRequested(Message, frozen=True, kw_only=True):
    edit: CellEdit


class CellEditAnswered(Message, frozen=True, kw_only=True):
    result: CellResult
