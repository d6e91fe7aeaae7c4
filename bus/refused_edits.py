"""Reasons why an edit in placement was refused, common to all kinds of edits."""

from typing import Literal

from bus.vocabulary import LongList, Tagged, Text


class Missing(Tagged, frozen=True, kw_only=True):
    """An object named in the edit does not exist."""

    what: Literal["provider", "parent", "resource class", "trait", "inventory", "aggregate", "host", "cell"]
    names: LongList[Text]
    provider: Text = ""  # inventory: its provider


class Taken(Tagged, frozen=True, kw_only=True):
    """The name or id is in use by another object."""

    what: Literal["name", "id", "inventory", "resource class"]
    value: Text


class InUse(Tagged, frozen=True, kw_only=True):
    """The object has allocations, or a server group has members."""

    what: Text  # the provider, class, trait or server group
    classes: LongList[Text] = ()
    members: LongList[Text] = ()  # some members of a server group


class Contended(Tagged, frozen=True, kw_only=True):
    """The edit lost a race with other writers too often. Nothing was changed; try again."""
