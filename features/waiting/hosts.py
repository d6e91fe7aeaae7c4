"""Provides the data of hosts that the waiting queues need, from the index, reports and filters."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import msgspec
import numpy as np

from bus import parts
from bus.candidates import Bools, CandidateSource, SenselessQuery
from bus.domains import ZONE
from bus.messages import BuildRequested
from bus.queries import FindCandidates
from bus.vocabulary import MAX_INT
from features.waiting.core.fitting import HostsFound, admitted_permanently, distances, fitting
from features.waiting.core.reserved_hosts import Prospect, Roots
from features.waiting.core.shares import Size
from features.waiting.core.waiting_queue import CapacityNeeded
from scheduler_worker.extension import Alternative, ChoicePolicy, HostsNow, RuleError

_encode = parts.encoder(order="deterministic").encode
_NO_PROSPECT = Prospect(0, np.zeros(0, np.intp), np.zeros(0), np.zeros(0), str, lambda position: False)

Hosts = tuple[HostsNow, Bools]  # the reported state of all hosts, and the mask of hosts with an agent
AlternativesOf = Callable[[BuildRequested], Sequence[Alternative]]


@dataclass(eq=False)
class FittingHosts:
    """Finds the hosts that fit waiting requests: one search and one run of the filters for each equivalence
    class of requests.
    """

    source: CandidateSource
    policy: ChoicePolicy
    hosts: Callable[[], Hosts]  # returns the present state of the hosts
    alternatives: AlternativesOf
    size_of: Callable[[BuildRequested], Size]
    _kinds: dict[str, BuildRequested] = field(default_factory=dict)
    _bases: dict[str, str] = field(default_factory=dict)

    def kind(self, request: BuildRequested, alternatives: Sequence[Alternative], project: str) -> str:
        """Return the equivalence class of a request whose turn depends on the share of `project`."""
        alike = [repr(self.policy.kind(alternative)) for alternative in alternatives]
        parts = request.parts.without(*[type(part) for part in request.parts if not part.limits_hosts])
        base = _digest((alike, request.forced_host, request.hints, needs_of(request), parts))
        kind = _digest((base, project))
        if kind not in self._kinds:
            self._kinds[kind], self._bases[kind] = request, base
        return kind

    def base(self, kind: str) -> str:
        return self._bases[kind]

    def wakes(self, kind: str) -> str:
        """Describe for operators which free capacity would let requests of an equivalence class be tried."""
        questions = [alternative.question for alternative in self.alternatives(self._kinds[kind])]
        zone, cell = (questions[0].zone, questions[0].cell) if questions else ("", "")
        place = (f" in zone {zone}" if zone else "") + (f" of cell {cell}" if cell else "")
        capacities = [(watch.amount, watch.resource_class) for watch in self.watches(kind)]
        needs = [f"{n} {name} free on one host{place}" if name else "any change" for n, name in capacities]
        closed = {cell for question in questions for cell in question.not_cells}
        needs += [f"cell {cell} enabled" for cell in sorted(closed)]
        several = needs_of(self._kinds[kind])
        return " or ".join(needs) + (f", for each of {several} instances" if several > 1 else "")

    def forget(self, kinds: Roots) -> None:
        """Forget the classes of which no request waits."""
        for kind in [old_kind for old_kind in self._kinds if old_kind not in kinds]:
            del self._kinds[kind], self._bases[kind]

    def size(self, kind: str) -> Size:
        return self.size_of(self._kinds[kind])

    def named_zone(self, kind: str) -> str:
        return next((each.question.zone for each in self.alternatives(self._kinds[kind])), "")

    def zone(self, root: str) -> str:
        position = self.source.position(root)
        numbers, names = self.source.labels(ZONE)
        return "" if position is None or position >= len(numbers) else names[numbers[position]]

    def hosts_by_zone(self) -> Mapping[str, int]:
        """Return the number of hosts in each availability zone."""
        numbers, names = self.source.labels(ZONE)
        positions = [host.position for host in self.source.hosts()]
        several = np.bincount(numbers[[at for at in positions if at < len(numbers)]], minlength=len(names))
        return dict(zip(names, several.tolist(), strict=True))

    def free(self, root: str) -> Mapping[str, int]:
        return self.source.free(root)

    def watches(self, kind: str) -> Sequence[CapacityNeeded]:
        """Return, for each flavor of an equivalence class, the requested amount of one resource class: the
        amount that the fewest hosts have free.
        """
        shared = set[str]().union(*self.source.sharing.values())
        watches = []
        for alternative in self.alternatives(self._kinds[kind]):
            if alternative.request.hints.query:  # a hint `query` may accept only hosts with little capacity
                return (CapacityNeeded(),)
            asked = {name: amount for name, amount in alternative.asked.items() if name not in shared}
            if not asked:
                return (CapacityNeeded(),)
            scarcest = min(asked, key=lambda name: self.source.having(name, asked[name]))
            watches.append(CapacityNeeded(scarcest, asked[scarcest]))
        return tuple(dict.fromkeys(watches)) or (CapacityNeeded(),)

    def search(self, kind: str, among: Roots | None, excluding: Roots, enough: int) -> HostsFound:
        """Return the hosts that fit a class, among the given ones and without the excluded."""
        return self.search_alternatives(self.alternatives(self._kinds[kind]), among, excluding, enough)

    def search_alternatives(
        self, alternatives: Sequence[Alternative], among: Roots | None, excluding: Roots, enough: int
    ) -> HostsFound:
        """Return which hosts in `among` (None: all) fit any of the flavors; stop at `enough` instances."""
        now, served = self.hosts()
        fits: dict[str, int] = {}
        refused: dict[str, None] = {}
        passing = more = False
        for alternative in alternatives:
            question = narrowed(alternative.question, among, excluding)
            if question is None:
                continue
            try:
                search = self.source.search(question)
            except SenselessQuery:
                continue
            most = enough if among is None else MAX_INT
            try:
                found = fitting(alternative, search, now, served, self.policy, most)
            except RuleError:  # a host is reported, so that the requests are evaluated, and then refused
                found = HostsFound({search.host(int(search.positions[0])).uuid: most})
            fits.update(found.fits)
            refused.update(dict.fromkeys(found.refused))
            passing, more = passing or found.passing, more or found.more
            if more:
                break
        return HostsFound(fits, [root for root in refused if root not in fits], passing, more)

    def prospect(self, kind: str) -> Prospect:
        """Return the hosts that the preferred flavor could ever use; other flavors reserve no hosts."""
        now, _ = self.hosts()
        alternatives = self.alternatives(self._kinds[kind])
        if not alternatives:  # a host that the request names was deleted; it may be added again
            return _NO_PROSPECT
        first = alternatives[0]
        asked = first.asked
        # A preferred NUMA affinity makes two alternatives with equal amounts; the last one, without it, fits
        # more hosts.
        alternative = [
            each
            for each in alternatives
            if each.alternative_index == first.alternative_index and each.asked == asked
        ][-1]
        try:
            search = self.source.search(alternative.question, empty=True)
        except SenselessQuery:
            return _NO_PROSPECT
        capacities = np.full(search.positions.size, np.inf)
        for name, amount in asked.items():
            whole = search.capacity(name)
            capacities = np.where(whole > 0, np.minimum(capacities, whole // amount), capacities)
        return Prospect(
            size=self.source.size,
            positions=search.positions,
            lacks=distances(asked, search),
            capacities=np.where(np.isinf(capacities), 1.0, capacities),
            root=lambda position: search.host(position).uuid,
            admits=lambda position: admitted_permanently(alternative, search, position, now, self.policy),
        )


def _digest(values: tuple[object, ...]) -> str:
    return blake2b(_encode(values), digest_size=6).hexdigest()


def narrowed(question: FindCandidates, among: Roots | None, excluding: Roots) -> FindCandidates | None:
    """Restrict a search to the hosts in `among` (None: all) that are not excluded; return None if no host is
    left.
    """
    if among is None:
        return without(question, excluding)
    left = [root for root in among if root not in excluding]
    if question.roots:
        left = [root for root in left if root in question.roots]
    return msgspec.structs.replace(question, roots=tuple(left)) if left else None


def without(question: FindCandidates, excluding: Roots) -> FindCandidates:
    """Return the query without these hosts."""
    if not excluding:
        return question
    return msgspec.structs.replace(question, not_roots=tuple(sorted({*question.not_roots, *excluding})))


def needs_of(request: BuildRequested) -> int:
    """Return how many instances of a request must get hosts together: `at_least`, or all if it is not set."""
    several = len(dict.fromkeys(request.instances))
    return min(request.at_least, several) if request.at_least else several
