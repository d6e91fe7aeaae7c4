"""Requests as alternatives, and hosts as filters and weighers see them."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from bus.aggregates import Aggregate
from bus.messages import BuildRequested, HostReported
from bus.queries import Candidate, FindCandidates
from bus.reports import HostState
from bus.requests import Flavor, ResourceGroup
from scheduler_worker.core.host_map import NOBODY, AllHosts
from scheduler_worker.core.request import RequestOptions, alternatives_of
from scheduler_worker.core.rule import Alternative, HostFacts
from scheduler_worker.hosts import HostBook
from tests.support.ids import uid
from tests.support.index_source import ALWAYS_FREE, RecordingSource
from tests.support.scheduler_builders import ROOM, a_request

ASKED = FindCandidates(groups=(ResourceGroup(resources={"VCPU": 1, "MEMORY_MB": 1024, "DISK_GB": 10}),))
_OF_WISH = Alternative.__dataclass_fields__.keys() - {"request", "flavor"}


def recent_builds(book: HostBook, cell: str, root: str, now: float) -> int:
    """Return the number of builds sent to a host that its last report may not include yet."""
    book._past(now)
    return int(book._columns.recent[book._columns.slots.get((cell, root), NOBODY)])


def failed_builds(book: HostBook, cell: str, root: str, now: float) -> float:
    """Return the number of failed builds on a host, each halved repeatedly with time."""
    weight = book._weight(now)
    return float(book._columns.failures[book._columns.slots.get((cell, root), NOBODY)]) / weight


def an_aggregate(number: int = 1, **metadata: str) -> Aggregate:
    return Aggregate(id=uid(number, "e"), name=f"aggregate{number}", metadata=metadata)


def the_facts(number: int = 1, *aggregates: Aggregate, sent: int = 0, **fields: object) -> HostFacts:
    of_state = {name: fields.pop(name) for name in list(fields) if name in HostState.__struct_fields__}
    root, host = uid(number, "c"), f"host{number}"
    state = HostState(root=root, host=host, **of_state) if of_state else None  # type: ignore[arg-type]
    facts = HostFacts(root, host, "cell1", f"agent{number}", free=ROOM, capacity=ROOM, state=state)
    building = sent + (state.building if state is not None else 0)
    return msgspec.structs.replace(facts, aggregates=aggregates, **{"building": building, **fields})


def a_wish(request: BuildRequested | None = None, **fields: object) -> Alternative:
    of_wish = {name: fields.pop(name) for name in list(fields) if name in _OF_WISH}
    request = request or a_request(**fields)  # type: ignore[arg-type]
    return Alternative(request, request.flavor, ASKED, **of_wish)  # type: ignore[arg-type]


def spaced_source(facts: Sequence[HostFacts]) -> RecordingSource:
    """Return a placement in which every host fits, and every third position is empty."""
    hosts = [
        Candidate(
            one.root, one.host, one.cell, one.agent, one.zone, {}, {},
            {**one.free, ALWAYS_FREE: 1}, {**one.capacity, ALWAYS_FREE: 1},
            one.traits,
            aggregates=tuple(aggregate.id for aggregate in one.aggregates),
        )
        for one in facts
    ]  # fmt: skip
    described = {one.id: one for host in facts for one in host.aggregates}
    return RecordingSource(hosts, aggregates=described, spaced=True)


def reported_by(facts: HostFacts, sequence: int = 1) -> HostReported:
    hosts = () if facts.state is None else (facts.state,)
    return HostReported(cell=facts.cell, agent=facts.agent, sequence=sequence, hosts=hosts)


def seen_at_once(facts: Sequence[HostFacts]) -> tuple[AllHosts, list[HostFacts]]:
    book, source = HostBook(0.0, grace=0.0), spaced_source(facts)
    for fact in facts:
        if not fact.down:
            book.handle(reported_by(fact), 0.0)
        reply = fact.state.building if fact.state is not None and not fact.down else 0
        for _ in range(fact.building - reply):
            book.chose(fact.cell, fact.root, 0.0)
        for _ in range(round(fact.failures)):
            book.failed(fact.cell, fact.root, 0.0)
    now, search = book.snapshot(source, 0.0), source.search(ASKED)
    one_by_one = [now.facts(search, int(position)) for position in search.positions]
    return AllHosts(search, now), [
        msgspec.structs.replace(one, free=_stated(one.free), capacity=_stated(one.capacity))
        for one in one_by_one
    ]


def _stated(amounts: Mapping[str, int]) -> dict[str, int]:
    return {name: amount for name, amount in amounts.items() if name != ALWAYS_FREE}


OPTIONS = RequestOptions()
HOSTS = {"host1": (uid(1, "c"),), "host2": (uid(2, "c"),), "rack": (uid(3, "c"), uid(4, "c"))}


def named(host: str) -> Sequence[str]:
    by_root = [root for roots in HOSTS.values() for root in roots if root == host]
    return by_root or HOSTS.get(host, ())


def flavor(specs: Mapping[str, str] | None = None, **figures: int) -> Flavor:
    known = {"vcpus": 4, "memory_mb": 4096, "disk_gb": 5} | figures
    return Flavor(name="f", extra_specs=dict(specs or {}), **known)


def alternatives(options: RequestOptions = OPTIONS, **request: Any) -> tuple[Alternative, ...]:
    return alternatives_of(a_request(**request), options, named, HOSTS.keys)


def groups(question: FindCandidates) -> dict[str, str]:
    """Return the query's groups as texts by suffix, such as `VCPU 4, +REQUIRED, -FORBIDDEN, ONE|OTHER`."""
    events = {}
    for group in question.groups:
        parts = [f"{name} {amount}" for name, amount in group.resources.items()]
        parts += [f"+{name}" for name in group.required] + [f"-{name}" for name in group.forbidden]
        parts += ["|".join(some) for some in group.required_any]
        events[group.suffix] = ", ".join(parts)
    return events
