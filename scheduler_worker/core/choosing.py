"""Chooses hosts for many requests: requests of one equivalence class share a search and evaluation."""

import dataclasses
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import msgspec
from msgspec.structs import replace

from bus.candidates import CandidateSource, SenselessQuery
from bus.groups import ServerGroup
from bus.queries import Candidate, FindCandidates
from bus.vocabulary import Allocations, Id
from scheduler_worker.core.domain_rules import Constraints, DomainRules, required_constraints
from scheduler_worker.core.drawing import counted_as_free, elsewhere
from scheduler_worker.core.events import Chosen
from scheduler_worker.core.fitting import FoundHosts
from scheduler_worker.core.gang_choice import GangChoice, is_gang
from scheduler_worker.core.host_map import HostMap, HostsNow
from scheduler_worker.core.order import MAX_CHOICES, MAX_CHOICES_EACH, Order
from scheduler_worker.core.policy import ChoicePolicy
from scheduler_worker.core.ranking import Ranking
from scheduler_worker.core.ranking_order import drawn
from scheduler_worker.core.rejections import Shortage, with_siblings
from scheduler_worker.core.rule import AllowedHosts, Alternative, Together
from scheduler_worker.core.scale import NOTHING_HELD, CapacityReservation, HasReservations, Pick

CHOICES = 3  # hosts named in one claim, best first
PACKED_CHOICES = 8  # the same if weighers prefer full hosts, which often have no capacity left at the claim


class Joined:
    """Records which hosts the unfinished batches of requests chose for new members of server groups."""

    def __init__(self) -> None:
        self._places: dict[Id, dict[Id, tuple[str, int]]] = {}  # group → new member → root and batch
        self._under_way: set[int] = set()
        self._last = 0

    def begin(self) -> int:
        """Begin a batch of requests, and return its number. Hosts chosen for group members from now on stay
        recorded until the batch ends, so call this before reading server groups.
        """
        self._last += 1
        self._under_way.add(self._last)
        return self._last

    def end(self, batch: int) -> None:
        self._under_way.discard(batch)
        if not self._places:
            return
        oldest = min(self._under_way, default=self._last + 1)
        for group, members in list(self._places.items()):
            self._places[group] = left = {id_: place for id_, place in members.items() if place[1] >= oldest}
            if not left:
                del self._places[group]

    def join(self, group: Id, member: Id, root: str) -> None:
        """Record a new group member's host; to be called when the host is chosen and when it is claimed."""
        self._places.setdefault(group, {})[member] = root, self._last

    def leave(self, group: Id, member: Id) -> None:
        self._places.get(group, {}).pop(member, None)

    def of(self, group: Id) -> dict[Id, str]:
        return {member: root for member, (root, _) in self._places.get(group, {}).items()}

    def copy(self) -> "Joined":
        other = Joined()
        other._places = {group: dict(members) for group, members in self._places.items()}
        return other


class EnteredReservations:
    """Passes reservations on, and drops those of an order whose choice raises an exception."""

    def __init__(self, passed_to: HasReservations) -> None:
        self._passed_to = passed_to
        self._entered: list[CapacityReservation] = []

    @property
    def unsettled(self) -> Sequence[CapacityReservation]:
        return self._passed_to.unsettled

    def enter(self, way: Candidate, held: Allocations = NOTHING_HELD) -> CapacityReservation:
        entered = self._passed_to.enter(way, held)
        self._entered.append(entered)
        return entered

    def drop(self, reservation: CapacityReservation) -> None:
        self._passed_to.drop(reservation)

    def kept_or_dropped(self, order: Order, joined: Joined, choose: Callable[[], Chosen]) -> Chosen:
        """Return the hosts that `choose` returns for an order, or the reason if the order is invalid, or if a
        filter or weigher failed.
        """
        self._entered.clear()
        try:
            return choose()
        except SenselessQuery as problem:
            for reservation in self._entered:
                self._passed_to.drop(reservation)  # no effect on those that were dropped before
            if (group := order.alternative.group) is not None:
                for instance in order.instances:
                    joined.leave(group.id, instance)
            return Chosen(short=Shortage.of_problem(problem, order.alternative.alternative_index))


@dataclasses.dataclass(frozen=True, eq=False)
class Choosing:
    """Chooses hosts for requests without `await`, so no host changes between first search and last choice."""

    source: CandidateSource
    hosts: HostMap
    now: HostsNow
    policy: ChoicePolicy
    pending: HasReservations
    joined: Joined

    def choose(self, orders: Sequence[Order]) -> list[Chosen]:
        """Return, in the sequence of `orders`, the hosts chosen for each, or the reason why too few fit."""
        alike: dict[Hashable, list[int]] = {}
        kinds: dict[int, Hashable] = {}  # id() of an alternative → its equivalence class
        shares = [(*self._shares(order), *counted_as_free(order.current)) for order in orders]
        for index, order in enumerate(orders):
            alternative = order.alternative
            kind = kinds.get(id(alternative))
            if alternative.group is not None or shares[index] or order.request.roles:
                # Orders with a group, with shares of pools or with a draw change the hosts of the next order,
                # so each is evaluated alone.
                kind = index
            elif kind is None:
                kind = kinds[id(alternative)] = self.policy.kind(alternative)
            alike.setdefault(kind, []).append(index)
        answers: dict[int, Chosen] = {}
        for indices in alike.values():
            first, entered = orders[indices[0]], EnteredReservations(self.pending)
            choosing = dataclasses.replace(self, pending=entered)
            with self.counting_as_free(*shares[indices[0]]):
                if is_gang(first):
                    gang = GangChoice(choosing, first)
                    answers[indices[0]] = entered.kept_or_dropped(first, self.joined, gang.choose)
                    continue
                kind_of_order = _Kind(choosing, first)
                for index in indices:
                    choose = partial(kind_of_order.hosts_for, orders[index])
                    answers[index] = entered.kept_or_dropped(orders[index], self.joined, choose)
        return [answers[index] for index in range(len(orders))]

    def alternates(self, order: Order) -> dict[Id, tuple[Candidate, ...]]:
        """Return by instance further alternates for claimed instances that have fewer than requested."""
        alternates: dict[Id, tuple[Candidate, ...]] = {}
        undrawn = {
            id(each.alternative): elsewhere(each.alternative)
            for each in order.settled
            if each.alternative is not None
        }
        order = order.changed(elsewhere)
        gang = GangChoice(self, order) if is_gang(order) else None
        for settled in order.settled:
            if not settled.lacking or settled.alternative is None:
                continue
            alternative, several = undrawn[id(settled.alternative)], settled.lacking
            excluding = order.settled_roots.union(way.root for way in settled.alternates)
            try:
                share = self.pooled(settled.chosen.choice.allocations)
                with self.counting_as_free(*counted_as_free([alternative]), *share):
                    if gang is not None:
                        found = gang.alternates(settled.instance, alternative, several, settled.cell)
                    else:
                        ranking = self.rank(alternative, order.request.request)
                        found = ranking.alternates(settled.cell, several, excluding, order.tried.avoided)
            except SenselessQuery:
                continue
            alternates[settled.instance] = found
        return alternates

    def _shares(self, order: Order) -> tuple[Allocations, ...]:
        """Return the allocations of a moving instance on shared providers (pools). If its destination uses
        the same pool, the instance needs the amount only once.
        """
        return self.pooled(order.purpose.holds)

    def pooled(self, allocations: Allocations) -> tuple[Allocations, ...]:
        """Return the part of the allocations that is on shared providers (pools); empty if there is none."""
        pools = self.source.sharing
        shares = (
            {provider: held for provider, held in allocations.items() if provider in pools} if pools else {}
        )
        return (shares,) if shares else ()

    @contextmanager
    def counting_as_free(self, *allocations: Allocations) -> Iterator[None]:
        """While the `with` block runs, searches count the amounts of `allocations`, such as those of
        reservations, as free.
        """
        counted = [each for each in allocations if each]
        for each in counted:
            self.source.withdraw(each)
        try:
            yield
        finally:
            for each in counted:
                self.source.reserve(each)

    def rank(self, alternative: Alternative, seed: str, several: int = 1) -> Ranking:
        """Return the hosts for a flavor, best first; `seed` decides the order of hosts with equal scores. The
        first members of an affinity group get only hosts that fit `several` instances.
        """
        question = alternative.question
        if alternative.group is not None:
            alternative = self.grouped(alternative, several)
        found = FoundHosts(alternative, self.source.search(question), self.now, self.hosts, self.policy)
        return Ranking(found, self.pending, seed)

    def without(self, rule: str) -> "Choosing":
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
        with self.counting_as_free(*(entry.allocations for entry in open_ones)):
            found = self.source.search(among)
            return any(found.ways(position, 1) for position in found.positions.tolist())

    def unknown(self, alternative: Alternative) -> str:
        """Return a sentence if the cell or zone that a request names has no hosts, or if no slot of its
        reservation fits; else "".
        """
        request = alternative.request
        if alternative.draw is not None and alternative.draw.why_none:
            return alternative.draw.why_none
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

    def grouped(self, alternative: Alternative, count: int) -> Alternative:
        """Return a copy of `alternative` with the data by which filters apply its server group's policy to
        `count` new members, such as the number of present members on each host.
        """
        group = alternative.group
        if group is None:
            return alternative
        members: dict[str, int] = {}
        joined = {member: (root,) for member, root in self.joined.of(group.id).items()}
        on: Mapping[str, Sequence[str]] = {**group.members, **joined}
        if group.policy == "anti-affinity":  # a host with a guest left behind is not permitted either
            on = {**group.left, **on}
        for roots in on.values():
            for root in roots:
                members[root] = members.get(root, 0) + 1
        together = None
        if group.policy == "affinity" and not members and count > 1:
            shared = set[str]().union(*self.source.sharing.values())
            asked = {name: count * amount for name, amount in alternative.asked.items() if name not in shared}
            together = Together(count, asked)
        allowed = alternative.allowed
        if allowed is None and group.topology.is_required:
            rules = self.domain_rules(group, required_constraints(group))
            position = self.source.position
            allowed = AllowedHosts(
                rules.open_to(), str(rules.constraints), lambda root: rules.why(position(root))
            )
        return dataclasses.replace(alternative, members=members, together=together, allowed=allowed)

    def domain_rules(self, group: ServerGroup | None, constraints: Constraints) -> DomainRules:
        """Return the rules of the constraints on domains, given the hosts of the server group's members.
        Members placed by unfinished batches also count.
        """
        if group is None:
            return DomainRules.of(self.source, constraints, {}, {})
        joined = {member: (root,) for member, root in self.joined.of(group.id).items()}
        return DomainRules.of(self.source, constraints, {**group.members, **joined}, group.left)


class _Kind:
    """The orders of one equivalence class in a batch; all take their hosts from one sorted list of hosts."""

    def __init__(self, choosing: Choosing, first: Order) -> None:
        self._choosing = choosing
        self._alternative = first.alternative
        self._seed = first.request.request
        self._choices = PACKED_CHOICES if choosing.policy.packs else CHOICES
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
        picks = self._picks(order)
        if len(picks) == len(order.instances):
            return Chosen(self._with_alternates(order, picks))
        if len(picks) < order.needed:
            group = order.alternative.group
            with_picks = self._short()  # the hosts that are nearest while the chosen hosts are still reserved
            for instance, (ranking, pick) in reversed(list(zip(order.instances, picks, strict=False))):
                ranking.put_back([pick])
                if group is not None:
                    self._choosing.joined.leave(group.id, instance)
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
        several = max(1, MAX_CHOICES // len(order.instances))
        group = order.alternative.group
        (held,) = self._choosing._shares(order) or (NOTHING_HELD,)
        picks: list[tuple[Ranking, Pick]] = []
        for instance in order.instances:
            if self._ranking is None or (group is not None and picks):
                self._ranking = self._choosing.rank(self._alternative, self._seed, order.needed)
                self._shortage = None
            pick = self._ranking.take(
                min(self._choices, several),
                min(several, MAX_CHOICES_EACH),
                order.tried.avoided,
                partial(drawn, self._seed, instance) if self._draws else None,
                held,
            )
            if pick is None:
                break
            if group is not None:
                self._choosing.joined.join(group.id, instance, pick.root)
            picks.append((self._ranking, pick))
        return picks

    def _with_alternates(self, order: Order, picks: Sequence[tuple[Ranking, Pick]]) -> tuple[Pick, ...]:
        """Return the chosen hosts (`picks`) with their alternates. No alternate is the host of another
        instance of the request.
        """
        several, draw = order.alternates, order.alternative.draw
        # If a claim may draw from a reservation, its alternates are chosen later, on hosts without slots.
        if not several or (draw is not None and draw.optional):
            return tuple([pick for _, pick in picks])
        excluding = {pick.root for _, pick in picks}
        if order.settled:
            excluding |= order.settled_roots
        complete = []
        for ranking, pick in picks:
            way = pick.choices[0]
            # An alternate gets the instance's share of a pool from the chosen host, unless it moves: then
            # the caller counts the share as free.
            share = () if pick.held else self._choosing.pooled(way.allocations)
            with self._choosing.counting_as_free(*share):
                if share:
                    ranking.found.forget_trees()
                alternates = ranking.alternates(way.cell, several, excluding, order.tried.avoided)
            if share:
                ranking.found.forget_trees()
            complete.append(replace(pick, alternates=alternates))
        return tuple(complete)

    def _short(self) -> Shortage:
        """Return why no host fits any more; cached until a host of this evaluation is chosen or released."""
        ranking = self._ranking
        if ranking is None:
            return Shortage()
        if self._shortage is None or self._shortage[0] != ranking.turns:
            found = ranking.verdicts.shortage()
            reserved = self._choosing.is_reserved(self._alternative)
            unknown = self._choosing.unknown(self._alternative)
            draw = self._alternative.draw
            self._shortage = (
                ranking.turns,
                dataclasses.replace(
                    found,
                    is_reserved=reserved,
                    unknown=unknown,
                    of_reservation=draw is not None and bool(draw.why_none),
                ),
            )
        return self._shortage[1]


def _known(kind: str, names: set[str]) -> str:
    return f"; known {kind}: {', '.join(sorted(names))}" if names else ""
