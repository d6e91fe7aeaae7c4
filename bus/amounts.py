"""Arithmetic of allocations: amounts by provider and resource class."""

from bus.vocabulary import Allocations


def totals(allocations: Allocations) -> dict[str, int]:
    """Return the sum of the amounts at all providers, by resource class."""
    found: dict[str, int] = {}
    for resources in allocations.values():
        for name, amount in resources.items():
            found[name] = found.get(name, 0) + amount
    return found


def covers(held: Allocations, wanted: Allocations) -> bool:
    """Return whether `held` has at least the amount in `wanted` for each provider and resource class."""
    return all(
        held.get(provider, {}).get(name, 0) >= amount
        for provider, resources in wanted.items()
        for name, amount in resources.items()
    )


def joined(allocations: Allocations, further: Allocations) -> Allocations:
    """Return the sum of two sets of allocations."""
    both = {provider: dict(resources) for provider, resources in allocations.items()}
    for provider, resources in further.items():
        amounts = both.setdefault(provider, {})
        for name, amount in resources.items():
            amounts[name] = amounts.get(name, 0) + amount
    return both


def without(allocations: Allocations, less: Allocations) -> Allocations:
    """Return allocations reduced by other allocations; amounts below 1 are left out."""
    left: Allocations = {}
    for provider, resources in allocations.items():
        minus = less.get(provider, {})
        amounts = {
            name: amount - minus.get(name, 0)
            for name, amount in resources.items()
            if amount > minus.get(name, 0)
        }
        if amounts:
            left[provider] = amounts
    return left


def common(first: Allocations, second: Allocations) -> Allocations:
    """Return, for each provider and resource class, the smaller of the two amounts; zeros are left out."""
    found: Allocations = {}
    for provider, resources in first.items():
        for name, amount in resources.items():
            if (least := min(amount, second.get(provider, {}).get(name, 0))) > 0:
                found.setdefault(provider, {})[name] = least
    return found
