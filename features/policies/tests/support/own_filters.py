"""Filters as an operator writes them."""

from scheduler_worker.core.rule import Alternative, HostFacts


def at_most_one(host: HostFacts, alternative: Alternative) -> str | None:
    instances = host.sent + (host.state.instances if host.state is not None else 0)
    return "an instance is there" if instances else None
