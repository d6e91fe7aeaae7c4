"""Rules about what a host can: by extra specs of the flavor, or by a query of the request."""

from collections.abc import Iterator, Mapping

from scheduler_worker.core.alternative import Alternative
from scheduler_worker.core.attributes import attribute
from scheduler_worker.core.facts import HostFacts
from scheduler_worker.core.json_query import UnreadableQuery, holds, parsed
from scheduler_worker.core.operators import meets
from scheduler_worker.core.rule import Rule
from scheduler_worker.core.rules.aggregates import unscoped

_SCOPE = "capabilities:"


def compute_capabilities() -> Rule:
    """The host's attributes satisfy the extra specs with `capabilities:PATH` or with the name of an
    attribute.

    A missing attribute fails a `capabilities:` requirement; a name without a scope that the host does not
    report is ignored.
    """

    def refuses(host: HostFacts, alternative: Alternative) -> str | None:
        for key, demand in _demands(alternative.flavor.extra_specs):
            path = key.removeprefix(_SCOPE)
            said = attribute(host, path)
            if said is None:
                if path == key:
                    continue
                return f"{path} is to be {demand}; it does not say"
            if not meets(said, demand):
                there = f"it is {said}" if said else "it does not say"
                return f"{path} is to be {demand}; {there}"
        return None

    return Rule(
        "compute_capabilities",
        refuses,
        reads=("flavor.extra_specs",),
        concerns=lambda alternative: any(_demands(alternative.flavor.extra_specs)),
    )


def json() -> Rule:
    """The hint `query` is true of it: `[">=", "$free_ram_mb", 1024]`."""

    def refuses(host: HostFacts, alternative: Alternative) -> str | None:
        text = alternative.request.hints.query
        if not text:
            return None
        try:
            query = parsed(text)
        except UnreadableQuery as problem:
            return f"the query means nothing: {problem}"
        return None if holds(query, host) else "the query is not true of it"

    return Rule(
        "json",
        refuses,
        reads=("hints.query",),
        concerns=lambda alternative: bool(alternative.request.hints.query),
    )


def _demands(extra_specs: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for key, demand in extra_specs.items():
        if key.startswith(_SCOPE) or unscoped(key):
            yield key, demand
