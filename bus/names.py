"""Resource classes and traits, and what can be asked of placement about them."""

from typing import Literal

from bus.not_done import Contended, InUse, Missing, Taken
from bus.vocabulary import LongList, Message, Number, Tagged, Text, Value

NameKind = Literal["resource class", "trait"]


class Named(Value, frozen=True, kw_only=True):
    """A resource class or trait."""

    name: Text
    updated: Number = 0.0


# Edits


class MakeName(Tagged, frozen=True, kw_only=True):
    name: Text


class RenameName(Tagged, frozen=True, kw_only=True):
    name: Text
    to: Text


class DropName(Tagged, frozen=True, kw_only=True):
    name: Text


NameEdit = MakeName | RenameName | DropName


# Outcomes


class NameEdited(Tagged, frozen=True, kw_only=True):
    named: Named | None = None
    made: bool = False  # False: it was there already, or is gone now


class Standard(Tagged, frozen=True, kw_only=True):
    """A standard name, or one that is not of the custom form: it can be neither made, renamed nor dropped."""

    name: Text


NameResult = NameEdited | Missing | Taken | InUse | Standard | Contended


# Questions and answers


class FindNames(Message, frozen=True, kw_only=True):
    """Resource classes or traits, in the order of their numbers; those among `names`, beginning so."""

    kind: NameKind
    names: LongList[Text] | None = None
    prefix: Text = ""
    associated: bool | None = None  # traits: that some provider has, or none


class NamesFound(Message, frozen=True, kw_only=True):
    names: LongList[Named]


class NameEditRequested(Message, frozen=True, kw_only=True):
    """Make, rename (classes only) or drop a custom class or trait."""

    kind: NameKind
    edit: NameEdit


class NameEditAnswered(Message, frozen=True, kw_only=True):
    result: NameResult
