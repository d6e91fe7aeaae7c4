"""Describes and shows hosts in commands."""

from collections.abc import Sequence
from typing import Annotated

from rich.text import Text
from rich.tree import Tree as Picture

from berth.kit.options import positional
from bus.masking import printable
from bus.resources import Provider

HostNames = Annotated[
    list[str] | None, positional("Names of hosts, or their roots' uuids.", metavar="HOST...")
]


def provider_tree(tree: Sequence[Provider], about: str) -> Picture:
    """Return a drawing of a host's provider tree, with the inventories, usage and traits of each provider.
    `about` is printed after the root's name.
    """
    found: dict[str | None, Picture] = {}
    waiting = sorted(tree, key=lambda each_provider: each_provider.name)
    while waiting:
        ready = [provider for provider in waiting if provider.parent is None or provider.parent in found]
        if not ready:
            break
        for provider in ready:
            label = Text(printable(provider.name), style="bold")
            label.append(about if provider.parent is None else "", style="")
            drawn = found[provider.parent].add(label) if provider.parent is not None else Picture(label)
            found[provider.id] = drawn
            for class_, has in sorted(provider.inventories.items()):
                used, ratio = provider.used.get(class_, 0), f" ×{has.allocation_ratio:g}"
                least = f", {has.reserved} reserved" if has.reserved else ""
                more = ratio if has.allocation_ratio != 1 else ""
                drawn.add(Text(f"{class_}  {used} of {has.capacity} used  ({has.total}{more}{least})"))
            if provider.labels:
                labels = (f"{level}={label}" for level, label in sorted(provider.labels.items()))
                drawn.add(Text(printable("  ".join(labels))))
            if provider.traits:
                drawn.add(Text(" ".join(provider.traits), style="dim"))
        waiting = [provider for provider in waiting if provider.id not in found]
    return next(found[provider.id] for provider in tree if provider.parent is None)
