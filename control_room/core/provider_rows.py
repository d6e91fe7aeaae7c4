"""A host's providers as a tree of rows."""

from collections.abc import Sequence

from bus.resources import Provider

MOST_DEPTH = 6  # that the page indents


def rows(tree: Sequence[Provider]) -> list[tuple[int, Provider]]:
    """Return each provider with its depth, below its parent and siblings by name; one without its parent is
    at the top.
    """
    below: dict[str | None, list[Provider]] = {}
    known = {provider.id for provider in tree}
    for provider in sorted(tree, key=lambda provider: provider.name, reverse=True):
        below.setdefault(provider.parent if provider.parent in known else None, []).append(provider)
    found = []
    left = [(0, provider) for provider in below.get(None, ())]
    while left:  # a tree may be deeper than Python's stack
        depth, provider = left.pop()
        found.append((min(depth, MOST_DEPTH), provider))
        left += [(depth + 1, child) for child in below.get(provider.id, ())]
    return found
