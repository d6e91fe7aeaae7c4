"""Messages that query and edit resource classes and traits in placement."""

from typing import Literal

from bus.vocabulary import Contended, InUse, LongList, Message, Missing, Number, Tagged, Taken, Text, Value

NameKind = Literal["resource class", "trait"]


class Named(Value, frozen=True, kw_only=True):
    """A resource class or trait, with the time of its last change."""

    name: Text
    updated: Number = 0.0


class MakeName(Tagged, frozen=True, kw_only=True):
    """Create a custom resource class or trait; if it exists already, nothing changes."""

    name: Text


class RenameName(Tagged, frozen=True, kw_only=True):
    """Rename a custom resource class; its inventories and allocations keep their amounts."""

    name: Text
    to: Text


class DropName(Tagged, frozen=True, kw_only=True):
    """Delete a custom resource class or trait, which is refused while it is in use."""

    name: Text


NameEdit = MakeName | RenameName | DropName


class NameEdited(Tagged, frozen=True, kw_only=True):
    """The answer to a successful edit of a resource class or trait."""

    named: Named | None = None
    made: bool = False  # True: the edit created the name; False: it existed, or was renamed or deleted


class Standard(Tagged, frozen=True, kw_only=True):
    """The refusal to edit a standard resource class or trait, or to create one without the prefix CUSTOM_."""

    name: Text


NameResult = NameEdited | Missing | Taken | InUse | Standard | Contended


class FindNames(Message, frozen=True, kw_only=True):
    """A query for resource classes or traits with given names or a prefix, sorted by their database ids."""

    kind: NameKind
    names: LongList[Text] | None = None
    prefix: Text = ""
    associated: bool | None = None  # for traits: only traits that some provider has (True), or that none has


class NamesFound(Message, frozen=True, kw_only=True):
    """The resource classes or traits that match FindNames."""

    names: LongList[Named]


class NameEditRequested(Message, frozen=True, kw_only=True):
    """Edit a resource class or a trait."""

    kind: NameKind
    edit: NameEdit


class NameEditAnswered(Message, frozen=True, kw_only=True):
    result: NameResult
