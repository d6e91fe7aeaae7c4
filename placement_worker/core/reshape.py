"""Decides where each allocation moves when an agent's report moves inventory within its tree (a reshape).

The report states the new providers of each guest. A consumer that the report omits (a holder consumer, or a
build before its order reaches the agent) moves as a whole to the first provider with capacity for all its
allocations. If a consumer fits nowhere, the report is refused.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from bus.claims import holder_consumer
from bus.messages import InventoryReported
from bus.reports import GuestPlace, InventoryMove
from bus.vocabulary import Allocations
from placement_worker.core.capacity import broken_limit
from placement_worker.core.trees import ProviderState, Tree

_At = tuple[str, str]  # provider and class
_Amounts = dict[_At, int]


class Unmovable(ValueError):
    """The error that a reshape cannot move allocations as required; the text names field and reason."""


@dataclass(frozen=True, slots=True)
class TreeHolder:
    """A consumer with allocations in a tree that is reshaped."""

    id: int
    uuid: str
    generation: int
    held: Allocations  # allocations on this tree
    elsewhere: Allocations = field(default_factory=dict)  # allocations on other trees, such as a pool
    build: bool = True  # True: an instance of berth; False: a holder consumer, or claimed by an API client


@dataclass(frozen=True, slots=True)
class MovedHolder:
    """A consumer with its allocations on the reshaped tree."""

    holder: TreeHolder
    held: Allocations  # new allocations on the tree


@dataclass(frozen=True, slots=True)
class Moves:
    """The result of a reshape: the new allocations of consumers, and the change of usage of each provider."""

    moved: Sequence[MovedHolder] = ()
    leave: Mapping[_At, int] = field(default_factory=dict)
    come: Mapping[_At, int] = field(default_factory=dict)

    def left(self, providers: Sequence[ProviderState]) -> list[ProviderState]:
        """Return the providers, with the amounts that the reshape moves away from them subtracted from their
        usage.
        """
        return [_used_by(provider, self.leave, -1) for provider in providers]

    def arrived(self, providers: Sequence[ProviderState]) -> tuple[ProviderState, ...]:
        """Return the providers, with the amounts that the reshape moves to them added to their usage."""
        return tuple(_used_by(provider, self.come, +1) for provider in providers)


NO_MOVES = Moves()


def moves(before: Tree, report: InventoryReported, holders: Sequence[TreeHolder]) -> Moves:
    """Return how the reshape in an agent's report moves allocations; raise Unmovable if they do not fit."""
    if report.reshape is None or report.sequence <= before.sequence:
        return NO_MOVES
    by_source = {(move.provider, move.resource_class): move for move in report.reshape.moves}
    _refuse_operators(before, report.reshape.moves)
    destinations = _Destinations(before, report, by_source)
    going = [(holder, held) for holder in holders if (held := destinations.moving_amounts(holder.held))]
    guests: dict[str, tuple[int, GuestPlace]] = {}  # consumer → index and item in the report
    for position, place in sorted(enumerate(report.reshape.guests), key=lambda pair: pair[1].attempt):
        holder_id = holder_consumer(place.build, place.attempt)
        guests[holder_id if any(holder_id == holder.uuid for holder in holders) else place.build] = (
            position,
            place,
        )
    places: dict[str, _Amounts] = {}
    unsaid = []
    for holder, held in going:
        if holder.uuid in guests:
            places[holder.uuid] = destinations.as_reported(*guests[holder.uuid], held)
        else:
            unsaid.append((holder, held))
    # Place the largest consumers first: small ones fit into the remaining capacity.
    for holder, held in sorted(unsaid, key=lambda pair: (-destinations.share(pair[1]), pair[0].uuid)):
        places[holder.uuid] = destinations.destination_amounts(holder, held)
    leave: Counter[_At] = Counter()
    come: Counter[_At] = Counter()
    moved = []
    for holder, held in going:
        leave.update(held)
        come.update(places[holder.uuid])
        moved.append(MovedHolder(holder, _after(holder.held, held, places[holder.uuid])))
    return Moves(moved, leave, come)


class _Destinations:
    """The providers to which a reshape moves inventory, with their free amounts."""

    def __init__(
        self, before: Tree, report: InventoryReported, by_source: Mapping[_At, InventoryMove]
    ) -> None:
        self._by_source = by_source
        wanted = {name for move in by_source.values() for name in move.to}
        used = {provider.uuid: provider.used for provider in before.providers}
        self.has = {part.id: part.inventories for part in report.providers if part.id in wanted}
        self.names = {reported.id: reported.name for reported in report.providers}
        self.free = {
            (provider, name): inventory.capacity - used.get(provider, {}).get(name, 0)
            for provider, inventories in self.has.items()
            for name, inventory in inventories.items()
        }

    def lacks(self, at: _At, amount: int) -> str:
        """Return why this amount cannot be allocated at this destination (provider and class) of a reshape;
        "" if it can.
        """
        provider, name = at
        inventory = self.has[provider][name]
        if amount > self.free[at]:
            return f"{self.names[provider]}: {amount} {name}, {max(self.free[at], 0)} free"
        if limit := broken_limit(amount, inventory.min_unit, inventory.max_unit, inventory.step_size):
            return f"{self.names[provider]}: {amount} {name} breaks its {limit}"
        return ""

    def take(self, amounts: _Amounts) -> None:
        for at, amount in amounts.items():
            self.free[at] -= amount

    def share(self, held: _Amounts) -> float:
        """Return how large a consumer is relative to its destinations: the largest ratio, over resource
        classes, of the consumer's amount to the total capacity of its destination providers. Consumers with
        larger ratios are placed first.
        """
        shares = [0.0]
        for at, amount in held.items():
            move = self._by_source[at]
            capacity = sum(self.has[to][_class_of(move)].capacity for to in move.to)
            shares.append(amount / max(capacity, 1))
        return max(shares)

    def moving_amounts(self, held: Allocations) -> _Amounts:
        return {
            (provider, name): amount
            for provider, resources in held.items()
            for name, amount in resources.items()
            if (provider, name) in self._by_source
        }

    def as_reported(self, position: int, guest: GuestPlace, held: _Amounts) -> _Amounts:
        """Return a guest's new allocations as its agent reports them; raise Unmovable if they are invalid.
        `held` are the guest's amounts that move; `position` is the guest's position in the report.
        """
        at = f"reshape.guests[{position}].allocations"
        wanted: Counter[str] = Counter()
        reported: Counter[str] = Counter()
        may: dict[str, set[str]] = {}
        for source, amount in held.items():
            name = _class_of(self._by_source[source])
            wanted[name] += amount
            may.setdefault(name, set()).update(self._by_source[source].to)
        place: _Amounts = {}
        for provider, resources in guest.allocations.items():
            for name, amount in resources.items():
                if provider not in may.get(name, ()):
                    raise Unmovable(f"{at}: {name} of {guest.build} does not move to {provider}")
                if why := self.lacks((provider, name), amount):
                    raise Unmovable(f"{at}: {guest.build} has no room at {why}")
                reported[name] += amount
                place[provider, name] = amount
        if reported != wanted:
            raise Unmovable(f"{at}: {guest.build} holds {_figures(wanted)}, not {_figures(reported)}")
        self.take(place)
        return place

    def destination_amounts(self, holder: TreeHolder, held: _Amounts) -> _Amounts:
        """Return a consumer's allocations at the destination providers of a reshape; raise Unmovable if they
        do not fit.
        """
        together: defaultdict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
        for source, amount in held.items():
            move = self._by_source[source]
            together[move.to][_class_of(move)] += amount
        place: _Amounts = {}
        for among, amounts in together.items():
            why = []
            for provider in among:
                needed = {(provider, name): amount for name, amount in amounts.items()}
                lacks = [lack for at, amount in needed.items() if (lack := self.lacks(at, amount))]
                if not lacks:
                    self.take(needed)
                    place |= needed
                    break
                why.append(lacks[0])
            else:
                raise Unmovable(
                    f"reshape: {holder.uuid} holds {_figures(amounts)}, which fits nowhere: {'; '.join(why)}"
                )
        return place


def _refuse_operators(before: Tree, asked: Sequence[InventoryMove]) -> None:
    providers = {provider.uuid: provider for provider in before.providers}
    for position, move in enumerate(asked):
        was = providers.get(move.provider)
        if was is None or move.resource_class not in was.inventories:
            continue  # an earlier report has already moved this inventory
        if move.resource_class not in was.reported.classes:
            at = f"reshape.moves[{position}].resource_class"
            raise Unmovable(f"{at}: {move.resource_class} of {was.name} is an operator's")


def _after(held: Allocations, goes: _Amounts, comes: _Amounts) -> Allocations:
    after = {
        provider: {name: amount for name, amount in resources.items() if (provider, name) not in goes}
        for provider, resources in held.items()
    }
    for (provider, name), amount in comes.items():
        amounts_after = after.setdefault(provider, {})
        amounts_after[name] = amounts_after.get(name, 0) + amount
    return {provider: resources for provider, resources in after.items() if resources}


def _used_by(state: ProviderState, amounts: Mapping[_At, int], sign: int) -> ProviderState:
    if not any((state.uuid, name) in amounts for name in state.inventories):
        return state
    used = {name: amount + sign * amounts.get((state.uuid, name), 0) for name, amount in state.used.items()}
    return replace(state, used=used)


def _class_of(move: InventoryMove) -> str:
    return move.becomes or move.resource_class


def _figures(amounts: Mapping[str, int]) -> str:
    return ", ".join(f"{amount} {name}" for name, amount in sorted(amounts.items())) or "nothing"
