"""Chooses hosts for instances that depend on each other: roles of a gang, and domains to pack into or spread
over.

Domains are tried in the order of core/domain_order.py: in each domain a greedy choice by score, then in each
an exact search within a limited number of steps.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from operator import and_
from typing import TYPE_CHECKING

import numpy as np
from msgspec import structs

from bus.candidates import Bools, SenselessQuery
from bus.queries import Candidate
from bus.vocabulary import Id
from features.groups.core.domain_rules import (
    Constraints,
    DomainRules,
    attempts,
    open_hosts,
    required_constraints,
)
from features.groups.core.joined_group import group_of_alternative
from features.groups.core.members import domain_rules
from features.groups.messages import ServerGroup
from features.topology.core.domain_order import DomainOrder
from features.topology.core.domain_search import Assignment, Budget, HostAmount, PartAmount
from features.topology.core.gang_shortage import Best, Chance, Wanted, shortage_of
from features.topology.messages import TopologyPart
from scheduler_worker.extension import (
    MAX_CHOICES_EACH,
    Alternative,
    Chosen,
    Order,
    OrderSection,
    Pick,
    Ranking,
    Scope,
    Shortage,
    drawn,
    sections_of,
)

if TYPE_CHECKING:
    from scheduler_worker.extension import Choosing

STEPS = 200_000  # hosts that the exact searches for one request may examine: a few tenths of a second
MOST_DOMAINS = 64  # domains that are tried for one request
MOST_HOSTS = 512  # hosts of a domain that an exact search considers
MOST_INSTANCES = 200  # instances for which an exact search is tried


Taken = list[tuple[Ranking, Pick, Id]]


@dataclass
class GangChoice:
    """Chooses hosts for all instances of one order together: either at least the needed number of instances
    get hosts, or no instance does.
    """

    choosing: "Choosing"
    order: Order
    scope: Scope
    budget: Budget = field(default_factory=lambda: Budget(STEPS))
    best: Best = field(default_factory=Best)
    _for_alternates: dict[tuple[int, bytes], Ranking] = field(default_factory=dict)

    def choose(self) -> Chosen:
        """Choose the hosts of all instances, with preferred constraints if they can be kept, else without."""
        chances = [self._chance(part) for part in self._parts()]
        chances.sort(key=lambda chance: int(np.count_nonzero(chance.fits)))
        for constraints in attempts(self._group):
            rules = self._rules(constraints)
            self.best = Best()
            if taken := self._attempt(chances, rules):
                return self._chosen(chances, rules, taken)
        rules = self._rules(Constraints() if self._group is None else constraints)
        return Chosen(short=self._short(chances, rules))

    def alternates(
        self, instance: Id, alternative: Alternative, several: int, cell: str
    ) -> tuple[Candidate, ...]:
        """Return up to `several` alternates in a cell for one instance with the flavor `alternative`. Each
        alternate satisfies the required constraints, given the hosts of all other instances.
        """
        group, order = self._group, self.order
        rules = self._rules(Constraints() if group is None else required_constraints(group))
        found: tuple[Candidate, ...] = ()
        own = {root for id_, root in self._roots().items() if id_ == instance}
        allowed = rules.open_to(instance)
        ranking = self._for_alternates.get(key := (id(alternative), allowed.tobytes()))
        if ranking is None:
            try:
                ranking = self._for_alternates[key] = self._rank(alternative, allowed, str(rules.constraints))
            except SenselessQuery:
                return found
        # First without all hosts of the request, then without this instance's host only.
        for excluding in ({*self._roots().values()}, own):
            missing = several - len(found)
            taken = excluding.union(way.root for way in found)
            found += ranking.alternates(cell, missing, taken, order.tried.avoided) if missing > 0 else ()
        return found

    @property
    def _group(self) -> ServerGroup | None:
        return group_of_alternative(self.order.alternative)

    def _roots(self) -> dict[Id, str]:
        roots = {settled.instance: settled.chosen.root for settled in self.order.settled}
        for instance, pick in zip(self.order.instances, self.order.picks, strict=False):
            roots[instance] = pick.root
        return roots

    def _parts(self) -> list[OrderSection]:
        return sections_of(self.order.request, self.order.current, self.order.instances)

    def _rules(self, constraints: Constraints) -> DomainRules:
        return domain_rules(self.choosing, self._group, constraints)

    def _chance(self, part: OrderSection) -> Chance:
        alternative = part.alternative
        ranking = self.choosing.rank(alternative, self.order.request.request)
        found = ranking.found
        admitted = reduce(and_, [mask for _, mask in found.masks])
        most: np.ndarray = np.where(admitted, float(len(part.instances)), 0.0)
        shared = set[str]().union(*self.choosing.source.sharing.values())
        for name, amount in alternative.asked.items():
            if amount and name not in shared:
                most = np.minimum(most, np.maximum(found.search.free(name), 0.0) // amount)
        fits = np.zeros(self.choosing.source.size, np.intp)
        fits[found.positions] = most.astype(np.intp)
        return Chance(part, alternative, ranking, fits)

    def _rank(self, alternative: Alternative, allowed: Bools, name: str) -> Ranking:
        limited = replace(alternative, allowed=open_hosts(allowed, name or "roles"))
        return self.choosing.rank(limited, self.order.request.request)

    def _attempt(self, chances: Sequence[Chance], rules: DomainRules) -> Taken | None:
        """Choose hosts for all parts of the request (`chances`) under the constraints of `rules`. If too few
        instances fit, keep no reservation and return None.
        """
        needed = self._needed(chances)
        domains = list(DomainOrder(self.choosing.source, chances, rules, needed, self.best).domains())
        if rules.constraints.loose_pack:
            if taken := self._fill(chances, rules, [mask for _, mask in domains], "")[0]:
                return taken
            return self._exactly(chances, rules, rules.open_to())
        tried = []
        for name, mask in domains[:MOST_DOMAINS]:
            taken, placed = self._fill(chances, rules, [mask], name)
            if taken:
                return taken
            self.best.note(name, placed)
            tried.append((name, mask))
        for _, mask in tried:
            if taken := self._exactly(chances, rules, mask):
                return taken
        return None

    def _needed(self, chances: Sequence[Chance]) -> int:
        if self.order.request.parts.sections:
            return sum(len(chance.part.instances) for chance in chances)
        return self.order.needed

    def _fill(
        self, chances: Sequence[Chance], rules: DomainRules, stages: Sequence[Bools], name: str
    ) -> tuple[Taken | None, int]:
        """Choose the best host for one instance after another, in the domain `name` ("": in several).
        `stages` are masks of hosts: a later mask is used only if no host of the earlier masks is left. Return
        the picks (None if too few instances got a host), and the number of instances that got a host.
        """
        taken: Taken = []
        for chance in chances:
            if not self._fill_part(chance, rules, stages, name, taken) and self.order.request.parts.sections:
                break
        placed = len(taken)
        if placed >= self._needed(chances):
            return taken, placed
        self._undo(rules, taken)
        return None, placed

    def _fill_part(
        self, chance: Chance, rules: DomainRules, stages: Sequence[Bools], name: str, taken: Taken
    ) -> bool:
        stage, ranking = 0, None
        for instance in chance.part.instances:
            pick = None
            while pick is None and stage < len(stages):
                if ranking is None:
                    allowed = stages[stage] & rules.open_to() if rules.spreads else stages[stage]
                    ranking = self._rank(chance.alternative, allowed, name)
                if (pick := self._take(ranking, instance)) is None:
                    stage, ranking = stage + 1, None
            if pick is None or ranking is None:
                return False
            self._join(rules, instance, pick)
            taken.append((ranking, pick, instance))
            if self._changes_next(rules):
                ranking = None
        return True

    def _changes_next(self, rules: DomainRules) -> bool:
        """Return whether the host of one instance changes which hosts the next instance may use."""
        group = self._group
        return bool(rules.spreads) or (group is not None and group.policy != "topology")

    def _take(self, ranking: Ranking, instance: Id) -> Pick | None:
        seed, draws = self.order.request.request, self.choosing.policy.subset > 1
        draw = partial(drawn, seed, instance) if draws else None
        return ranking.take(1, MAX_CHOICES_EACH, self.order.tried.avoided, draw, self.scope)

    def _join(self, rules: DomainRules, instance: Id, pick: Pick) -> None:
        position = self.choosing.source.position(pick.root)
        if position is not None:
            rules.join(instance, position)
        self.choosing.tentative.add(self.scope.key, instance, pick.root)

    def _undo(self, rules: DomainRules, taken: Taken) -> None:
        for ranking, pick, instance in reversed(taken):
            ranking.put_back([pick])
            rules.leave(instance)
            self.choosing.tentative.remove(self.scope.key, instance)
        taken.clear()

    def _exactly(self, chances: Sequence[Chance], rules: DomainRules, mask: Bools) -> Taken | None:
        """Choose hosts by an exact search among the hosts of a mask; None if it finds no assignment."""
        wanted = sum(len(chance.part.instances) for chance in chances)
        if self._needed(chances) < wanted or wanted > MOST_INSTANCES:
            return None
        if len(chances) == 1 and len(rules.spreads) < 2:  # then the greedy choice places the most
            return None
        fits = reduce(np.add, [chance.fits for chance in chances])
        positions = np.flatnonzero(mask & (fits > 0))[:MOST_HOSTS].tolist()
        classes = sorted({name for chance in chances for name in chance.alternative.asked} - self._shared())
        hosts = [self._host(chances, rules, position, classes) for position in positions]
        parts = [
            PartAmount(
                len(chance.part.instances), tuple([chance.alternative.asked.get(name, 0) for name in classes])
            )
            for chance in chances
        ]
        search = Assignment(hosts, parts, [most for _, most in rules.spreads], self.budget)
        found = search.find([rules.counts(level) for level, _ in rules.spreads])
        self.best.cut |= self.budget.left < 0
        return None if found is None else self._take_found(chances, rules, hosts, found)

    def _shared(self) -> set[str]:
        return set[str]().union(*self.choosing.source.sharing.values())

    def _host(
        self, chances: Sequence[Chance], rules: DomainRules, position: int, classes: Sequence[str]
    ) -> HostAmount:
        accepts: list[bool] = []
        free: Mapping[str, int] = {}
        for chance in chances:
            ranking = chance.ranking
            accepted = bool(chance.fits[position])
            if accepted:
                index = int(np.searchsorted(ranking.found.positions, position))
                ranking.found.forget(index)  # reservations on the host may have changed
                accepted = ranking.found.admits(index) and bool(
                    ranking.found.ways(index, 1, self.order.tried.avoided)
                )
                free, _ = ranking.found.search.amounts(position)
            accepts.append(accepted)
        amounts = tuple([int(free.get(name, 0)) for name in classes])
        return HostAmount(position, amounts, rules.spread_labels(position), tuple(accepts))

    def _take_found(
        self,
        chances: Sequence[Chance],
        rules: DomainRules,
        hosts: Sequence[HostAmount],
        found: Sequence[tuple[int, int]],
    ) -> Taken | None:
        taken: Taken = []
        waiting = [list(chance.part.instances) for chance in chances]
        for number, index in found:
            allowed = np.zeros(len(rules.domains), np.bool_)
            allowed[hosts[index].position] = True
            ranking, instance = self._rank(chances[number].alternative, allowed, ""), waiting[number].pop(0)
            if (pick := self._take(ranking, instance)) is None:
                self._undo(rules, taken)
                return None
            self._join(rules, instance, pick)
            taken.append((ranking, pick, instance))
        return taken

    def _chosen(self, chances: Sequence[Chance], rules: DomainRules, taken: Taken) -> Chosen:
        picks = {instance: pick for _, pick, instance in taken}
        chosen = [instance for instance in self.order.instances if instance in picks]
        left = [instance for instance in self.order.instances if instance not in picks]
        self.order = structs.replace(
            self.order, instances=(*chosen, *left), picks=tuple([picks[instance] for instance in chosen])
        )
        several = self.order.alternates
        if several and not self.scope.optional:
            for part in sections_of(self.order.request, self.order.current, chosen):
                for instance in part.instances:
                    cell = picks[instance].choices[0].cell
                    alternates = self.alternates(instance, part.alternative, several, cell)
                    picks[instance] = structs.replace(picks[instance], alternates=alternates)
        short = self._short(chances, rules) if left else None
        return Chosen(tuple([picks[instance] for instance in chosen]), short)

    def _short(self, chances: Sequence[Chance], rules: DomainRules) -> Shortage:
        choosing = self.choosing
        counts = [len(chance.part.instances) for chance in chances]
        wanted = Wanted(sum(counts), self._needed(chances), counts)
        short = shortage_of(chances, rules, self.best, wanted)
        alternatives = [chance.alternative for chance in chances]
        unfit = [each.unfit.code for each in alternatives if each.unfit is not None]
        return replace(
            short,
            is_reserved=any(choosing.is_reserved(alternative) for alternative in alternatives),
            unknown=next((why for each in alternatives if (why := choosing.unknown(each))), ""),
            unfit=unfit[0] if unfit else "",
            optional=self.scope.optional,
        )


def is_gang(order: Order) -> bool:
    """Return whether the instances of an order are chosen together, because they have roles or a topology."""
    group = group_of_alternative(order.preferred) if order.attempts else None
    return TopologyPart in order.request.parts or (group is not None and bool(group.topology.levels))
