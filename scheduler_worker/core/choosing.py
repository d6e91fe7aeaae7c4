"""Chooses hosts for many requests: requests of one equivalence class share a search and evaluation."""

import dataclasses
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Protocol

import msgspec
from msgspec.structs import replace

from bus.candidates import CandidateSource, SenselessQuery
from bus.queries import Candidate, FindCandidates
from bus.vocabulary import Allocations, Id, Mappings
from scheduler_worker.core.events import Chosen
from scheduler_worker.core.fitting import FoundHosts
from scheduler_worker.core.host_hashes import drawn
from scheduler_worker.core.host_map import HostMap, HostsNow
from scheduler_worker.core.order import MAX_CHOICES, MAX_CHOICES_EACH, Order, Settled
from scheduler_worker.core.policy import ChoicePolicy
from scheduler_worker.core.ranking import CapacityReservation, HasReservations, Pick, Ranking
from scheduler_worker.core.rule import PLAIN, Alternative, Scope
from scheduler_worker.core.shortage import Shortage, with_siblings

CHOICES = 3  # hosts named in one claim, best first
MORE_CHOICES = 8  # the same if hosts with little capacity are preferred, which often are full at the claim


class ChoiceNarrowing:
    """The methods of a narrowing (`narrowing.Narrowing`) that a choice of hosts calls."""

    def concerns(self, order: Order) -> bool:
        """Return whether the other methods must be called for an order."""
        return False

    def scope(self, order: Order, alternatives: Sequence[Alternative]) -> Scope:
        """Return how hosts are chosen for the given alternatives of an order."""
        return PLAIN

    def renew(self, alternative: Alternative, several: int, choosing: "Choosing") -> Alternative:
        """Return an alternative with what its filters need to know about the hosts chosen so far, if a host
        must fit `several` instances. Called before each evaluation, for alternatives of all orders.
        """
        return alternative

    def late(self, alternative: Alternative) -> Alternative:
        """Return the alternative by which alternates are searched after the claim."""
        return alternative


class JointChoice(Protocol):
    """Chooses the hosts of all instances of an order together."""

    def choose(self, choosing: "Choosing", order: Order, scope: Scope) -> Chosen:
        """Choose the hosts of all instances of the order."""

    def alternates(self, choosing: "Choosing", order: Order) -> Mapping[Id, tuple[Candidate, ...]]:
        """Return alternates for the claimed instances of an order that have fewer than requested."""


class TentativeHosts:
    """Records which hosts the unfinished batches of requests chose for instances whose hosts depend on each
    other. `Scope.key` says which instances these are.
    """

    def __init__(self) -> None:
        self._places: dict[Id, dict[Id, tuple[str, int]]] = {}  # key → instance → root and batch
        self._under_way: set[int] = set()
        self._last = 0

    @contextmanager
    def batch(self) -> Iterator[None]:
        """While the `with` block runs, hosts that it or another batch chooses stay recorded. It must begin
        before the batch reads where the instances of earlier requests are.
        """
        self._last += 1
        batch = self._last
        self._under_way.add(batch)
        try:
            yield
        finally:
            self._end(batch)

    def _end(self, batch: int) -> None:
        """Forget the hosts that no batch under way can have chosen."""
        self._under_way.discard(batch)
        if not self._places:
            return
        oldest = min(self._under_way, default=self._last + 1)
        for key, instances in list(self._places.items()):
            self._places[key] = left = {id_: place for id_, place in instances.items() if place[1] >= oldest}
            if not left:
                del self._places[key]

    def add(self, key: Id | None, instance: Id, root: str) -> None:
        """Record an instance's host; to be called when the host is chosen and when it is claimed."""
        if key is not None:
            self._places.setdefault(key, {})[instance] = root, self._last

    def remove(self, key: Id | None, instance: Id) -> None:
        """Forget the tentative host of an instance."""
        if key is not None:
            self._places.get(key, {}).pop(instance, None)

    def of(self, key: Id) -> dict[Id, tuple[str, ...]]:
        """Return the tentative hosts of the instances with this key."""
        return {instance: (root,) for instance, (root, _) in self._places.get(key, {}).items()}

    def copy(self) -> "TentativeHosts":
        """Return a copy in which changes do not affect this object."""
        other = TentativeHosts()
        other._places = {key: dict(instances) for key, instances in self._places.items()}
        return other


class EnteredReservations:
    """Passes reservations on, and drops those of an order whose choice raises an exception."""

    def __init__(self, passed_to: HasReservations) -> None:
        self._passed_to = passed_to
        self._entered: list[CapacityReservation] = []

    @property
    def unsettled(self) -> Sequence[CapacityReservation]:
        return self._passed_to.unsettled

    def drawn_from(self, source: Id) -> Sequence[CapacityReservation]:
        return self._passed_to.drawn_from(source)

    def enter(self, way: Candidate, scope: Scope = PLAIN) -> CapacityReservation:
        entered = self._passed_to.enter(way, scope)
        self._entered.append(entered)
        return entered

    def drop(self, reservation: CapacityReservation) -> None:
        self._passed_to.drop(reservation)

    def kept_or_dropped(self, choose: Callable[[], Chosen]) -> Chosen | SenselessQuery:
        """Return the hosts that `choose` returns, or the error if the order is invalid, or if a filter or
        weigher failed.
        """
        self._entered.clear()
        try:
            return choose()
        except SenselessQuery as problem:
            for reservation in self._entered:
                self._passed_to.drop(reservation)  # no effect on those that were dropped before
            return problem


@dataclasses.dataclass(frozen=True, eq=False)
class Choosing:
    """Chooses hosts for requests without `await`, so no host changes between first search and last choice."""

    source: CandidateSource
    hosts: HostMap
    now: HostsNow
    policy: ChoicePolicy
    pending: HasReservations
    tentative: TentativeHosts
    narrowings: Sequence[ChoiceNarrowing] = ()

    def choose(self, orders: Sequence[Order]) -> list[Chosen]:
        """Return, in the sequence of `orders`, the hosts chosen for each, or the reason why too few fit."""
        alike: dict[Hashable, list[int]] = {}
        kinds: dict[int, Hashable] = {}  # id() of an alternative → its equivalence class
        scopes = [self.scope(order, order.current) for order in orders]
        for index, order in enumerate(orders):
            alternative = order.alternative
            kind = index if scopes[index].alone else kinds.get(id(alternative))
            if kind is None:
                kind = kinds[id(alternative)] = self.policy.kind(alternative)
            alike.setdefault(kind, []).append(index)
        answers: dict[int, Chosen] = {}
        for indices in alike.values():
            first, scope, entered = orders[indices[0]], scopes[indices[0]], EnteredReservations(self.pending)
            choosing = dataclasses.replace(self, pending=entered)
            with self.source.packing.releasing(*scope.free, scope.held):
                choose: Callable[[Order], Chosen] = (
                    _EqualOrders(choosing, first, scope).hosts_for
                    if scope.jointly is None
                    else partial(scope.jointly.choose, choosing, scope=scope)
                )
                for index in indices:
                    found = entered.kept_or_dropped(partial(choose, orders[index]))
                    answers[index] = self._refused(orders[index], scope, found)
        return [answers[index] for index in range(len(orders))]

    def _refused(self, order: Order, scope: Scope, found: Chosen | SenselessQuery) -> Chosen:
        if isinstance(found, Chosen):
            return found
        for instance in order.instances:
            self.tentative.remove(scope.key, instance)
        return Chosen(short=Shortage.of_problem(found, order.alternative.alternative_index, scope.optional))

    def scope(self, order: Order, alternatives: Sequence[Alternative]) -> Scope:
        """Return how the hosts of an order are chosen for some of its alternatives."""
        shares = self.pooled(order.purpose.holds)
        scope = Scope(alone=True, held=shares[0]) if shares else PLAIN
        for narrowing in self.narrowings:
            if narrowing.concerns(order):
                scope = scope.joined(narrowing.scope(order, alternatives))
        return scope

    def alternates(self, order: Order) -> dict[Id, tuple[Candidate, ...]]:
        """Return by instance further alternates for claimed instances that have fewer than requested."""
        late = {
            id(each.alternative): self._late(each.alternative)
            for each in order.settled
            if each.alternative is not None
        }
        order = replace(
            order.changed(self._late),
            settled=tuple(
                [replace(each, alternative=late.get(id(each.alternative))) for each in order.settled]
            ),
        )
        if (jointly := self.scope(order, order.current).jointly) is not None:
            return dict(jointly.alternates(self, order))
        found: dict[Id, tuple[Candidate, ...]] = {}
        for settled in order.settled:
            if not settled.lacking or settled.alternative is None:
                continue
            excluding = order.settled_roots.union(way.root for way in settled.alternates)
            with suppress(SenselessQuery), self.counting_claim(order, settled):
                ranking = self.rank(settled.alternative, order.request.request)
                found[settled.instance] = ranking.alternates(
                    settled.cell, settled.lacking, excluding, order.tried.avoided
                )
        return found

    @contextmanager
    def counting_claim(self, order: Order, settled: Settled) -> Iterator[None]:
        """While the `with` block runs, count as free what an alternate of a claimed instance would not need
        in addition to the claim.
        """
        alternatives = [] if settled.alternative is None else [settled.alternative]
        free = self.scope(order, alternatives).free
        with self.source.packing.releasing(*free, *self.pooled(settled.chosen.choice.allocations)):
            yield

    def _late(self, alternative: Alternative) -> Alternative:
        """Return an alternative with what narrowings add only when its hosts are searched."""
        for narrowing in self.narrowings:
            alternative = narrowing.late(alternative)
        return alternative

    def pooled(self, allocations: Allocations) -> tuple[Allocations, ...]:
        """Return the part of the allocations that is on shared providers (pools); empty if there is none."""
        pools = self.source.sharing
        shares = (
            {provider: held for provider, held in allocations.items() if provider in pools} if pools else {}
        )
        return (shares,) if shares else ()

    def rank(self, alternative: Alternative, seed: str, several: int = 1) -> Ranking:
        """Return the hosts for a flavor, best first; `seed` decides the order of hosts with equal scores. If
        an order needs hosts that fit `several` instances together, only such hosts are returned.
        """
        return Ranking(self.find(alternative, several), self.pending, seed)

    def find(self, alternative: Alternative, several: int = 1) -> FoundHosts:
        """Return the hosts for a flavor, without an order: no weigher is computed."""
        alternative = self.renewed(alternative, several)
        search = self.source.search(alternative.question)
        return FoundHosts(alternative, search, self.now, self.hosts, self.policy)

    def renewed(self, alternative: Alternative, several: int = 1) -> Alternative:
        """Return an alternative with what its filters need to know about the hosts chosen so far."""
        for narrowing in self.narrowings:
            alternative = narrowing.renew(alternative, several, self)
        return alternative

    def without(self, rule: str) -> "Choosing":
        """Return the same choice without one filter, to see which hosts it rejects."""
        rules = tuple([other_rule for other_rule in self.policy.rules if other_rule.name != rule])
        return dataclasses.replace(self, policy=dataclasses.replace(self.policy, rules=rules))

    def is_reserved(self, alternative: Alternative) -> bool:
        """Return whether a request would fit if this scheduler released the capacity reserved for claims that
        placement has not answered. Confirmed claims are not counted, even if the index does not show them
        yet: what is reserved for them is used.
        """
        open_ones = self.pending.unsettled
        question = alternative.question
        roots = {entry.root for entry in open_ones}
        if question.roots:
            roots &= set(question.roots)
        if not roots:
            return False
        among: FindCandidates = msgspec.structs.replace(question, roots=tuple(roots))
        with self.source.packing.releasing(*(entry.allocations for entry in open_ones)):
            found = self.source.search(among)
            return any(found.ways(position, 1) for position in found.positions.tolist())

    def unknown(self, alternative: Alternative) -> str:
        """Return a sentence if the cell or zone that a request names has no hosts, or if a narrowing knows
        before the search that no host fits; else "".
        """
        request = alternative.request
        if alternative.unfit is not None:
            return alternative.unfit.why
        if not request.cell and not request.zone:
            return ""
        hosts = self.source.hosts()
        cells = {host.cell for host in hosts} - {""}
        if request.cell and request.cell not in cells:
            return f"cell: no hosts in cell {request.cell!r}{_known('cells', cells)}"
        aggregates = self.source.aggregates.values()
        zones = {host.zone for host in hosts} - {""}
        zones |= {zone for aggregate in aggregates if (zone := aggregate.metadata.get("availability_zone"))}
        if request.zone and request.zone not in zones:
            known = _known("zones", zones) or "; no host names a zone"
            return f"zone: no hosts in zone {request.zone!r}{known}"
        return ""


def mappings_of(source: CandidateSource, question: FindCandidates, root: Id, held: Allocations) -> Mappings:
    """Return the providers that serve each request group of a claim on a host, as a search finds them within
    the claim's allocations. {} if the root has all of these, or if they are not what the groups ask for now.
    """
    if held.keys() <= {root}:
        return {}
    asked = FindCandidates(
        groups=question.groups,
        group_policy=question.group_policy,
        isolated=question.isolated,
        same_subtree=question.same_subtree,
        roots=(root,),
    )
    try:
        search = source.search(asked, empty=True)
    except SenselessQuery:  # the claim was made for another request
        return {}
    ways = [way for position in search.positions.tolist() for way in search.ways(position, 1, (held,))]
    return next((way.mappings for way in ways if way.allocations == held), {})


class _EqualOrders:
    """The orders of one equivalence class in a batch; all take their hosts from one sorted list of hosts."""

    def __init__(self, choosing: Choosing, first: Order, scope: Scope) -> None:
        self._choosing = choosing
        self._scope = scope
        self._alternative = first.alternative
        self._seed = first.request.request
        self._choices = MORE_CHOICES if choosing.policy.packs else CHOICES
        self._draws = choosing.policy.subset > 1
        self._ranking: Ranking | None = None
        self._shortage: tuple[object, Shortage] | None = None

    def hosts_for(self, order: Order) -> Chosen:
        """Return the hosts for an order, or why too few fit. After an exception, the next order begins with a
        new evaluation.
        """
        try:
            return self._hosts_for(order)
        except SenselessQuery:
            self._ranking = None
            raise

    def _hosts_for(self, order: Order) -> Chosen:
        """Choose hosts for an order; if they are too few, put them back and say what is short."""
        picks = self._picks(order)
        if len(picks) == len(order.instances):
            return Chosen(self._with_alternates(order, picks))
        if len(picks) < order.needed:
            with_picks = self._short()  # the hosts that are nearest while the chosen hosts are still reserved
            for instance, (ranking, pick) in reversed(list(zip(order.instances, picks, strict=False))):
                ranking.put_back([pick])
                self._choosing.tentative.remove(self._scope.key, instance)
            short = self._short()
            if picks:
                chosen = dict.fromkeys(pick.choices[0].host for _, pick in picks)
                short = dataclasses.replace(
                    short,
                    removals=with_siblings(short, [*chosen]),
                    nearest=tuple(
                        [miss for miss in with_picks.nearest if short.named or miss.host not in chosen]
                    ),
                    fitted=len(picks),
                )
            return Chosen(short=short)
        return Chosen(self._with_alternates(order, picks), self._short())

    def _picks(self, order: Order) -> list[tuple[Ranking, Pick]]:
        """Take a host for each instance of an order, until no host is left."""
        several = max(1, MAX_CHOICES // len(order.instances))
        scope, picks = self._scope, list[tuple[Ranking, Pick]]()
        for instance in order.instances:
            if self._ranking is None or (scope.key is not None and picks):
                self._ranking = self._choosing.rank(self._alternative, self._seed, order.needed)
                self._shortage = None
            pick = self._ranking.take(
                min(self._choices, several),
                min(several, MAX_CHOICES_EACH),
                order.tried.avoided,
                partial(drawn, self._seed, instance) if self._draws else None,
                scope,
            )
            if pick is None:
                break
            self._choosing.tentative.add(scope.key, instance, pick.root)
            picks.append((self._ranking, pick))
        return picks

    def _with_alternates(self, order: Order, picks: Sequence[tuple[Ranking, Pick]]) -> tuple[Pick, ...]:
        """Return the chosen hosts (`picks`) with their alternates. No alternate is the host of another
        instance of the request.
        """
        several = order.alternates
        if not several or self._scope.optional:
            return tuple([pick for _, pick in picks])
        excluding = {pick.root for _, pick in picks}
        if order.settled:
            excluding |= order.settled_roots
        complete = []
        for ranking, pick in picks:
            way = pick.choices[0]
            # An alternate gets the instance's share of a pool from the chosen host, unless it moves: then
            # the caller counts the share as free.
            share = () if self._scope.held else self._choosing.pooled(way.allocations)
            find = partial(ranking.alternates, way.cell, several, excluding, order.tried.avoided)
            if share:
                with self._choosing.source.packing.releasing(*share):
                    ranking.found.forget_trees()
                    alternates = find()
                ranking.found.forget_trees()
            else:
                alternates = find()
            complete.append(replace(pick, alternates=alternates))
        return tuple(complete)

    def _short(self) -> Shortage:
        """Return why no host fits any more; cached until a host of this evaluation is chosen or released."""
        ranking = self._ranking
        if ranking is None:
            return Shortage()
        if self._shortage is None or self._shortage[0] != ranking.turns:
            self._shortage = (
                ranking.turns,
                dataclasses.replace(
                    ranking.verdicts.shortage(),
                    is_reserved=self._choosing.is_reserved(self._alternative),
                    unknown=self._choosing.unknown(self._alternative),
                    unfit="" if self._alternative.unfit is None else self._alternative.unfit.code,
                    optional=self._scope.optional,
                ),
            )
        return self._shortage[1]


def _known(kind: str, names: set[str]) -> str:
    """Return the end of a sentence that lists the known names."""
    return f"; known {kind}: {', '.join(sorted(names))}" if names else ""
