"""Explains why hosts of a search were not chosen: how many each filter rejected, and which came closest."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
from msgspec import structs

from bus.candidates import Bools, CandidateSearch, Ints, PlacedHost
from bus.decisions import NearMiss, Removal
from scheduler_worker.core.host_map import NO_AGENT, HostMap
from scheduler_worker.core.rule import Alternative, HostFacts, Rule
from scheduler_worker.core.shortage import EXAMPLES, NEAREST, NO_ROOM_NOW, running
from scheduler_worker.core.view import HostsNow

TENANT = "tenant"
CLOSED = frozenset(
    {"disabled", "down", TENANT, NO_AGENT}
)  # codes of hosts that no request of this kind may use
Mask = tuple[Rule, Bools]
Refusal = tuple[Rule, str]
Refusals = Mapping[int, Refusal]  # by index of the host


class FoundHosts:
    """The hosts of a search result, known by their index into its arrays."""

    def __init__(self, search: CandidateSearch, now: HostsNow, hosts: HostMap) -> None:
        self._search = search
        self._now = now
        self._hosts = hosts
        self._positions = search.positions
        self._facts: dict[int, HostFacts] = {}

    def host(self, index: int) -> PlacedHost:
        return self._search.host(self._positions.item(index))

    def name(self, index: int) -> str:
        return self.host(index).host

    def facts(self, index: int) -> HostFacts:
        """Return the facts of a host as of the first call, or of the last `read_again`."""
        facts = self._facts.get(index)
        if facts is None:
            facts = self.read_again(index)
        return facts

    def read_again(self, index: int) -> HostFacts:
        """Read the facts of a host again, because its free capacity changed."""
        facts = self._facts[index] = self._now.facts(self._search, self._positions.item(index))
        return facts

    def facts_beyond(self, host: str) -> HostFacts | None:
        """Return the facts of a host outside the search result, or None if its name is not unique."""
        source = self._now.source
        positions = [source.position(root) for root in source.named(host)]
        if len(positions) != 1 or positions[0] is None:
            return None
        return self._now.facts(self._search, positions[0])

    def indices(self, roots: Collection[str]) -> set[int]:
        """Return the indices of the given root providers that the search found."""
        positions = [self._now.source.position(root) for root in roots]
        known = [position for position in positions if position is not None]
        found: list[int] = np.flatnonzero(np.isin(self._positions, known)).tolist()
        return set(found)

    def why_no_agent(self, index: int) -> str:
        return self._hosts.why_no_agent(self.host(index))

    def index(self, root: str) -> int:
        """Return the index of a root provider that the search found."""
        position = self._now.source.position(root)
        return int(np.searchsorted(self._positions, -1 if position is None else position))


@dataclass(eq=False)
class Verdicts:
    """The rejections of hosts: by filters that evaluate arrays, then by filters that evaluate one host."""

    alternative: Alternative
    served: Bools
    masks: Sequence[Mask]
    lazy: Sequence[Rule]
    rules: Sequence[Rule]
    found: FoundHosts
    _at_once: list[tuple[Removal, Rule | None, Ints]] | None = field(default=None, init=False)

    def removals(self, refused: Refusals, full: Iterable[int], left: int) -> tuple[Removal, ...]:
        """Return how many of the hosts that placement left each filter removed."""
        removals = [removal for removal, *_ in self._removed_at_once()]
        by_rule: dict[str, list[int]] = {}
        codes = {}
        for index, (rule, _) in refused.items():
            by_rule.setdefault(rule.name, []).append(index)
            codes[rule.name] = rule.code or rule.name
        removals += [self._removal(name, codes[name], indices) for name, indices in by_rule.items()]
        removals.append(self._removal(NO_ROOM_NOW, "chosen", list(full)))
        return tuple(running(left, removals))

    def nearest(
        self, refused: Refusals, full: Iterable[int], beyond: Iterable[NearMiss]
    ) -> tuple[NearMiss, ...]:
        """Return the hosts that pass the most constraints, best first; if the request names hosts, the named
        hosts. Disabled hosts are left out unless all hosts are disabled or the request names them.
        """
        if self.alternative.pinned:
            by_host: dict[str, NearMiss] = {}
            for miss in self._misses(refused, full, self._also_refused(beyond)):
                by_host.setdefault(miss.host, miss)
            return tuple(by_host.values())[:NEAREST]
        closed, open_ = list[NearMiss](), list[NearMiss]()
        for miss in self._misses(refused, full, self._open(beyond)):
            if miss.code not in CLOSED:
                open_.append(miss)
            elif miss.code != TENANT and len(closed) < NEAREST:
                closed.append(miss)
            if len(open_) == NEAREST:
                break
        return tuple(open_ or closed)

    def _open(self, beyond: Iterable[NearMiss]) -> Iterable[NearMiss]:
        """Leave out near misses that are also disabled or down."""
        closing = [rule for rule in self.rules if rule.code in CLOSED]
        return (miss for miss in beyond if not self._refusals(miss, closing))

    def _also_refused(self, beyond: Iterable[NearMiss]) -> Iterable[NearMiss]:
        for miss in beyond:
            why = [why for why in self._refusals(miss, self.rules) if why not in miss.lacks]
            yield structs.replace(miss, lacks="; ".join((*why, miss.lacks))) if why else miss

    def _refusals(self, miss: NearMiss, rules: Sequence[Rule]) -> list[str]:
        facts = self.found.facts_beyond(miss.host)
        if facts is None:
            return []
        return [why for rule in rules if (why := rule.refuses(facts, self.alternative)) is not None]

    def may_pass(self, refused: Refusals) -> bool:
        """Return whether some host is rejected only by filters whose refusals end within seconds."""
        lasting = [rule for rule in self.lazy if not self._passes(rule)]
        for index, (rule, _) in refused.items():
            if self._passes(rule) and self._none_refuses(lasting, index):
                return True
        if not any(self._passes(rule) for rule, _ in self.masks):
            return False
        strict, admitted = self.served.copy(), self.served.copy()
        for rule, mask in self.masks:
            admitted &= mask
            if not self._passes(rule):
                strict &= mask
        return any(
            self._none_refuses(lasting, index) for index in np.flatnonzero(strict & ~admitted).tolist()
        )

    def _passes(self, rule: Rule) -> bool:
        """Return whether the refusal may pass, except that of a named host that is down."""
        return rule.passes and not (self.alternative.pinned and rule.code == "down")

    def _none_refuses(self, rules: Sequence[Rule], index: int) -> bool:
        return all(rule.refuses(self.found.facts(index), self.alternative) is None for rule in rules)

    def _misses(
        self, refused: Refusals, full: Iterable[int], beyond: Iterable[NearMiss]
    ) -> Iterable[NearMiss]:
        pinned = self.alternative.pinned
        named = self.found.indices(pinned)
        if pinned:
            refused = {index: refused[index] for index in named if index in refused}
            full = [index for index in full if index in named]
        for index in full:
            lacks = "free capacity: taken by instances just placed"
            yield NearMiss(host=self.found.name(index), lacks=lacks, code="chosen")
        for asked in reversed(self.lazy):
            for index, (rule, why) in islice(refused.items(), 50 * NEAREST):
                if rule is asked:
                    yield NearMiss(host=self.found.name(index), lacks=why, code=rule.code or rule.name)
        for _, removed_by, indices in reversed(self._removed_at_once()):
            shown = indices[np.isin(indices, [*named])] if pinned else indices[:NEAREST]
            for index in shown.tolist():
                if removed_by is None:
                    yield NearMiss(
                        host=self.found.name(index), lacks=self.found.why_no_agent(index), code=NO_AGENT
                    )
                    continue
                lacks = removed_by.refuses(self.found.facts(index), self.alternative) or removed_by.name
                yield NearMiss(
                    host=self.found.name(index), lacks=lacks, code=removed_by.code or removed_by.name
                )
        yield from beyond

    def _removed_at_once(self) -> list[tuple[Removal, Rule | None, Ints]]:
        if self._at_once is None:
            left = self.served.copy()
            gone = np.flatnonzero(~left)
            self._at_once = [(self._removal(NO_AGENT, NO_AGENT, gone), None, gone)]
            for rule, mask in self.masks:
                gone = np.flatnonzero(left > mask)
                if gone.size:
                    left &= mask
                    removal = self._removal(rule.name, rule.code or rule.name, gone)
                    self._at_once.append((removal, rule, gone))
        return self._at_once

    def _removal(self, constraint: str, code: str, indices: Sequence[int] | Ints) -> Removal:
        hosts = tuple([self.found.name(int(index)) for index in indices[:EXAMPLES]])
        return Removal(constraint=constraint, removed=len(indices), left=0, code=code, hosts=hosts)
