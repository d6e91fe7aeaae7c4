"""Why an edit was not done, whatever it was of."""

from typing import Literal

from bus.vocabulary import Tagged


class Missing(Tagged, frozen=True, kw_only=True):
    """Something that was named does not exist."""

    what: Literal["provider", "parent", "resource class", "trait", "inventory", "aggregate", "host", "cell"]
    names: tuple[str, ...]
    provider: str = ""  # inventory: whose


class Taken(Tagged, frozen=True, kw_only=True):
    what: Literal["name", "id", "inventory", "resource class"]
    value: str


class InUse(Tagged, frozen=True, kw_only=True):
    """Something is held of it; of a provider these classes, in the order of their numbers."""

    what: str  # the provider, class, trait or server group
    classes: tuple[str, ...] = ()
    members: tuple[str, ...] = ()  # of a server group: some of them


class Contended(Tagged, frozen=True, kw_only=True):
    """Lost the same race too often; nothing was changed. Ask again."""
