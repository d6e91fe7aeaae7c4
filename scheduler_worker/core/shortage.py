"""Explains why no host fits: counts the hosts that each requested resource and filter rejected, finds
the hosts that came closest, and states the reason as a sentence.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np
from msgspec import structs

from bus.candidates import Ints, SenselessQuery
from bus.decisions import EXCLUDED, OF_HOSTS, REASONS, Decision, NearMiss, Removal
from bus.messages import BuildRequested
from scheduler_worker.core.fitting import FoundHosts
from scheduler_worker.core.host_map import NO_AGENT
from scheduler_worker.core.rule import Alternative, Rule

NEAREST = 5  # nearly fitting hosts in a record
NEAREST_BEYOND = 16  # nearly fitting hosts that placement is asked for; filters reject some of them
EXAMPLES = 3  # hosts named as examples for each constraint
MAX_REFUSED = 16  # refused hosts in a record
SIBLINGS = "taken by other instances of the request"
CLOSED = frozenset({"disabled", "down", "tenant", NO_AGENT})  # codes of hosts that no similar request may use


@dataclass(frozen=True, slots=True)
class Shortage:
    """The reason why no host fits: the hosts that each filter rejected, and the hosts that came closest."""

    considered: int = 0
    removals: tuple[Removal, ...] = ()  # hosts removed by each constraint of placement, then by each filter
    nearest: tuple[NearMiss, ...] = ()
    held: tuple[NearMiss, ...] = ()  # fit, but are reserved for waiting requests; also in `nearest`
    may_pass: bool = False  # whether some host is rejected for a temporary reason only
    is_reserved: bool = False  # whether only other requests' reserved capacity prevents the placing
    named: bool = False  # True if `nearest` has the hosts that the request names
    fitted: int = 0  # number of instances that fit, if all must be placed together
    alternative_index: int = 0  # 0: the preferred flavor; n: the n-th flavor of `or_else`
    notes: tuple[str, ...] = ()
    # why the request's cell or zone has no hosts, or its restriction no amounts; "" otherwise
    unknown: str = ""
    refusal: str = ""  # why the request is invalid, or a filter or weigher failed
    refusal_code: str = "unreadable"
    unfit: str = ""  # code of the reason if it was known before the search that no host fits
    optional: bool = False  # whether further alternatives follow, so that this shortage is no reason

    @classmethod
    def of_problem(
        cls, problem: SenselessQuery, alternative_index: int, optional: bool = False
    ) -> "Shortage":
        """Return the shortage of an alternative that cannot be evaluated, with the problem as its reason."""
        return cls(
            alternative_index=alternative_index,
            refusal=str(problem),
            refusal_code=problem.code,
            optional=optional,
        )

    @property
    def code(self) -> str:
        """Return the code for the reason why no host fits (docs/reasons.md), such as `no_hosts`."""
        if self.refusal:
            return self.refusal_code
        if self.unfit:
            return self.unfit
        if self.fitted:
            return "room"
        if self.held:
            return "reserved"
        deciding = next((removal for removal in self.removals if not removal.left), None)
        if deciding is None:
            return "room" if self.considered else "no_hosts"
        return deciding.code or deciding.about or deciding.constraint

    def decision(self, refused: tuple[str, ...]) -> Decision:
        """Return the decision that clients and `berth why` receive; `refused` are hosts that placement
        refused.
        """
        return Decision(
            considered=self.considered,
            removals=self.removals,
            nearest=self.nearest,
            refused=refused,
            code=self.code,
            notes=self.notes,
        )

    def reason(self, request: BuildRequested, instances: int, refused: Sequence[str]) -> str:
        """Return in one sentence why the request gets no host."""
        if self.refusal or self.unknown:
            return self.refusal or self.unknown
        parts = [f"no valid host among {self.considered}"]
        if self.held and not self.named:
            parts.append(f"it fits {_grouped(self.held)}")
        if self.removals:
            parts.append(", ".join(map(_removed, self.removals)))
        if refused:
            parts.append(f"placement refused {'; '.join(refused)}")
        closest = [miss for miss in self.nearest if miss not in self.held]
        if closest and not self.named:
            parts.append(f"closest {_grouped(closest)}")
        if self.fitted:
            needed = request.at_least or instances
            parts.append(f"free capacity for {self.fitted} of the {needed} instances needed at once")
        whole = ": ".join((parts[0], ". ".join(parts[1:]))) if parts[1:] else parts[0]
        if not self.named:
            return whole
        return ". ".join([*(f"{miss.host}: {miss.lacks}" for miss in self.nearest), whole])


def with_siblings(short: Shortage, hosts: Sequence[str]) -> tuple[Removal, ...]:
    """Return the counts of a shortage before any instance of the request was chosen, and last the `hosts`
    that other instances of the request would take.
    """
    left = short.removals[-1].left if short.removals else short.considered
    if not left:
        return short.removals
    taken = Removal(constraint=SIBLINGS, removed=left, left=0, code="chosen", hosts=tuple(hosts[:EXAMPLES]))
    return (*short.removals, taken)


def _grouped(misses: Sequence[NearMiss]) -> str:
    """Return the names of hosts, grouped by what they lack, as text."""
    by_lack: dict[str, list[str]] = {}
    for miss in misses:
        by_lack.setdefault(miss.lacks, []).append(miss.host)
    return "; ".join(f"{', '.join(hosts)} ({lacks})" for lacks, hosts in by_lack.items())


def _removed(removal: Removal) -> str:
    state = REASONS[OF_HOSTS].counted.get(removal.code)
    if state is None:
        return f"{removal.constraint} removed {removal.removed}"
    return f"{state or removal.constraint}: {removal.removed} host{'' if removal.removed == 1 else 's'}"


class Verdicts:
    """Counts the hosts that one evaluation rejected: by placement's search for the requested resources, then
    by each filter."""

    def __init__(self, found: FoundHosts, notes: tuple[str, ...]) -> None:
        keeps_together = found.keeps_together
        self._found = found
        self._notes = notes
        self._lazy = found.lazy if keeps_together is None else [*found.lazy, keeps_together]
        self._by_placement: tuple[Removal, ...] | None = None
        self._counted: set[int] = set()  # positions of hosts counted in placement's removals
        self._removals: tuple[tuple[int, int], tuple[Removal, ...]] | None = None

    def removals(self) -> tuple[Removal, ...]:
        """Return how many hosts each requested resource and then each filter rejected."""
        found = self._found
        state = len(found.refused), len(found.full)
        if self._removals is None or self._removals[0] != state:
            if self._by_placement is None:
                removals = found.search.removals()
                self._by_placement = tuple([_named_limits(found.alternative, each) for each in removals])
                left = removals[-1].left if removals else found.search.considered
                if left < len(found.positions):
                    refused = [index for index in found.refused if index in found.chosen]
                    self._counted = {index for index in refused if not found.ways(index, 1)}.union(found.full)
                else:
                    self._counted = set()
            self._removals = state, (*self._by_placement, *self._by_filters())
        return self._removals[1]

    def _by_filters(self) -> Iterator[Removal]:
        by_rule: dict[tuple[str, str], list[int]] = {}
        for index, (rule, _) in self._found.refused.items():
            if index not in self._counted:
                by_rule.setdefault((rule.name, rule.code), []).append(index)
        full = [index for index in self._found.full if index not in self._counted]
        left = len(self._found.positions) - len(self._counted)
        for removal in (
            *(removal for removal, *_ in self._removed_at_once),
            *(self._removal(*rule, indices) for rule, indices in by_rule.items()),
            self._removal("free capacity taken by instances just placed", code="chosen", indices=full),
        ):
            if removal.removed:
                left -= removal.removed
                yield structs.replace(removal, left=left)

    @cached_property
    def _removed_at_once(self) -> list[tuple[Removal, Rule, Ints]]:
        found: list[tuple[Removal, Rule, Ints]] = []
        left = np.ones(len(self._found.positions), np.bool_)
        for rule, mask in self._found.masks:
            removed = np.flatnonzero(left > mask)
            if removed.size:
                left &= mask
                found.append((self._removal(rule.name, rule.code, removed), rule, removed))
        return found

    def _removal(self, constraint: str, code: str, indices: Sequence[int] | Ints) -> Removal:
        hosts = tuple([self._found.host(int(index)).host for index in indices[:EXAMPLES]])
        return Removal(constraint=constraint, removed=len(indices), left=0, code=code, hosts=hosts)

    def shortage(self) -> Shortage:
        """Return how many hosts each condition and filter rejected, and the hosts that miss least."""
        alternative, search = self._found.alternative, self._found.search
        self._by_placement = self._removals = None
        held, nearest = self._held(), self._nearest()
        if not alternative.pinned:
            nearest = (*held, *(miss for miss in nearest if miss not in held))[:NEAREST]
        return Shortage(
            considered=search.considered,
            removals=self.removals(),
            nearest=nearest,
            held=held,
            named=bool(alternative.pinned),
            may_pass=self._may_pass(),
            alternative_index=alternative.alternative_index,
            notes=self._notes,
        )

    def _held(self) -> tuple[NearMiss, ...]:
        """Return hosts that fit except that they are reserved for other requests."""
        alternative, found = self._found.alternative, self._found
        ignored = {*alternative.request.ignore_hosts}
        roots = sorted({root for limit in alternative.limits for root in limit.roots} - ignored)
        beyond = found.search.nearest(roots, NEAREST_BEYOND) if roots else ()
        held = [miss for miss in beyond if miss.lacks == EXCLUDED and miss.host not in ignored]
        fitting = [miss for miss in held if not self._refusals(miss, found.rules)][:NEAREST]
        return tuple(_lacking_limited(alternative, miss, found.source.named(miss.host)) for miss in fitting)

    def _nearest(self) -> tuple[NearMiss, ...]:
        """Return the hosts that come closest to fitting, best first, or the hosts that the request names.
        Disabled hosts are left out unless all hosts are disabled or the request names them.
        """
        alternative, found = self._found.alternative, self._found
        nearest, named = found.search.nearest(alternative.pinned, NEAREST_BEYOND), found.source.named
        beyond = [_lacking_limited(alternative, miss, named(miss.host)) for miss in nearest]
        if alternative.pinned:
            by_host: dict[str, NearMiss] = {}
            for miss in self._misses():
                by_host.setdefault(miss.host, miss)
            for miss in beyond:
                why = [why for why in self._refusals(miss, found.rules) if why not in miss.lacks]
                by_host.setdefault(miss.host, structs.replace(miss, lacks="; ".join((*why, miss.lacks))))
            return tuple(by_host.values())[:NEAREST]
        closing = [rule for rule in found.rules if rule.code in CLOSED]
        closed, open_ = list[NearMiss](), list[NearMiss]()
        for misses, rules in ((self._misses(), ()), (beyond, closing)):
            for miss in misses:
                if self._refusals(miss, rules):
                    continue  # a host that is also disabled or down is not near to fitting
                if miss.code not in CLOSED:
                    open_.append(miss)
                elif miss.code != "tenant" and len(closed) < NEAREST:
                    closed.append(miss)
                if len(open_) == NEAREST:
                    return tuple(open_)
        return tuple(open_ or closed)

    def _refusals(self, miss: NearMiss, rules: Sequence[Rule]) -> list[str]:
        found = self._found
        positions = [found.source.position(root) for root in found.source.named(miss.host)] if rules else []
        if len(positions) != 1 or positions[0] is None:  # no host or several hosts have this name
            return []
        facts = found.view.now.facts(found.search, positions[0])
        return [why for rule in rules if (why := rule.refuses(facts, found.alternative)) is not None]

    def _misses(self) -> Iterator[NearMiss]:
        """Yield the hosts that were found but rejected; hosts that passed the most filters come first."""
        found, pinned = self._found, self._found.alternative.pinned
        positions = [found.source.position(root) for root in pinned]
        known = [position for position in positions if position is not None]
        named = np.flatnonzero(np.isin(found.positions, known)).tolist()
        refused, full = found.refused, list(found.full)
        if pinned:
            refused = {index: refused[index] for index in named if index in refused}
            full = [index for index in full if index in named]
        for index in full:
            yield self._miss(index, "free capacity: taken by instances just placed", code="chosen")
        for asked in reversed(self._lazy):
            for index, (rule, why) in islice(refused.items(), 50 * NEAREST):
                if rule is asked:
                    yield self._miss(index, why, rule.code)
        for _, rule, removed in reversed(self._removed_at_once):
            for index in (removed[np.isin(removed, named)] if pinned else removed[:NEAREST]).tolist():
                lacks = rule.refuses(found.facts(index), found.alternative)
                yield self._miss(index, lacks or rule.name, rule.code)

    def _miss(self, index: int, lacks: str, code: str) -> NearMiss:
        return NearMiss(host=self._found.host(index).host, lacks=lacks, code=code)

    def _may_pass(self) -> bool:
        """Return True if some host may fit within seconds: only short-lived reasons reject it now."""
        lasting = [rule for rule in self._lazy if not self._passes(rule)]
        indices = [index for index, (rule, _) in self._found.refused.items() if self._passes(rule)]
        strict = np.ones(len(self._found.positions), np.bool_)
        admitted = strict.copy()
        for rule, mask in self._found.masks:
            admitted &= mask
            if not self._passes(rule):
                strict &= mask
        indices += np.flatnonzero(strict & ~admitted).tolist()
        return any(
            all(rule.refuses(self._found.facts(index), self._found.alternative) is None for rule in lasting)
            for index in indices
        )

    def _passes(self, rule: Rule) -> bool:
        """Return whether rejections by a filter are temporary. If the request names hosts, the rejection of a
        host as down counts as permanent.
        """
        return rule.passes and not (self._found.alternative.pinned and rule.code == "down")


def _named_limits(alternative: Alternative, removal: Removal) -> Removal:
    if not alternative.limits or removal.code != "forbidden_host":
        return removal
    named = [EXCLUDED] if alternative.request.ignore_hosts else []
    named += dict.fromkeys(limit.what for limit in alternative.limits)
    return structs.replace(removal, constraint=" or ".join(named), code=alternative.limits[0].code)


def _lacking_limited(alternative: Alternative, miss: NearMiss, roots: Sequence[str]) -> NearMiss:
    """Return the record `miss` of a rejected host; `roots` are the roots of the hosts with its name. If a
    limit excludes one of them, the returned reason is that of the limit.
    """
    for root in roots:
        for limit in alternative.limits:
            if root in limit.roots:
                code = limit.code if miss.code == "forbidden_host" else miss.code
                return structs.replace(miss, lacks=miss.lacks.replace(EXCLUDED, limit.why(root)), code=code)
    return miss
