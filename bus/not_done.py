"""Why an edit was not done, whatever it was of."""

from typing import Literal

from bus.vocabulary import LongList, Tagged, Text


class Missing(Tagged, frozen=True, kw_only=True):
    """Something that was named does not exist."""

    what: Literal["provider", "parent", "resource class", "trait", "inventory", "aggregate", "host", "cell"]
    names: LongList[Text]
    provider: Text = ""  # inventory: whose


class Taken(Tagged, frozen=True, kw_only=True):
    what: Literal["name", "id", "inventory", "resource class"]
    value: Text


class InUse(Tagged, frozen=True, kw_only=True):
    """Something is held of it; of a provider these classes, in the order of their numbers."""

    what: Text  # the provider, class, trait or server group
    classes: LongList[Text] = ()
    members: LongList[Text] = ()  # of a server group: some of them


class Contended(Tagged, frozen=True, kw_only=True):
    """Lost the same race too often; nothing was changed. Ask again."""
