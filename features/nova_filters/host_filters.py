"""Filters for the attributes that hosts report: by extra specs, and by the hint `query`."""

from features.nova_filters.core.attributes import attribute
from features.nova_filters.core.extra_specs import demands, meets
from features.nova_filters.core.query import UnreadableQuery, holds, parsed
from scheduler_worker.extension import Alternative, HostFacts, Rule

SCOPE = "capabilities"
_CAPABILITIES = f"{SCOPE}:"


def compute_capabilities() -> Rule:
    """Accept hosts that satisfy the extra specs named `capabilities:PATH` or by the name of an attribute.

    If the host does not report the attribute, a `capabilities:` requirement fails, and a name without a scope
    is ignored.
    """

    def refuses(host: HostFacts, alternative: Alternative) -> str | None:
        for path, demand, scoped in demands(alternative.flavor.extra_specs, _CAPABILITIES):
            value = attribute(host, path)
            if (value is None and scoped) or (value is not None and not meets(value, demand)):
                return f"{path} is to be {demand}; {f'it is {value}' if value else 'it is not reported'}"
        return None

    def concerns(alternative: Alternative) -> bool:
        return any(demands(alternative.flavor.extra_specs, _CAPABILITIES))

    return Rule(
        "compute_capabilities", refuses, reads=("flavor.extra_specs",), concerns=concerns, reads_unscoped=True
    )


def json() -> Rule:
    """Accept hosts for which the hint `query` is true, such as `[">=", "$free_ram_mb", 1024]`."""

    def refuses(host: HostFacts, alternative: Alternative) -> str | None:
        query = alternative.request.hints.query
        try:
            return None if not query or holds(parsed(query), host) else "the query is not true of it"
        except UnreadableQuery as problem:
            return f"the query means nothing: {problem}"

    def concerns(alternative: Alternative) -> bool:
        return bool(alternative.request.hints.query)

    return Rule("json", refuses, reads=("hints.query",), concerns=concerns)
