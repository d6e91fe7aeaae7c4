"""Plans failover headroom: slots into which every instance of any one failed domain can be evacuated.

A domain is a set of hosts that fail together: one host, or one rack. Instances whose allocations have the
same form (core/forms.py: the amount of each resource class, and for nested providers the place in the tree),
on hosts of one kind (such as the same cell and zone), are a class, and an instance is evacuated into a slot
of exactly its class. Slots of a class are interchangeable. The evacuation of a domain therefore succeeds in
every order if, for each class, the slots outside of the domain are at least as many as the instances inside.

A member of an anti-affinity group needs a slot on a host without members of its group. It finds one in every
order if such slots are left after all other instances of its class took one each, and after each other
evacuated member of its group closed one host, the host with the most slots.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from heapq import nlargest

from bus.packing import ProviderPacking
from bus.vocabulary import Allocations
from features.reservations.core.forms import Form, ProviderNode, form_of, placed

Class = tuple[Hashable, Form]  # kind of host, and form of the allocations
MOST_REASONS = 20
UNKNOWN = "its host is unknown"


@dataclass(frozen=True, slots=True)
class HeadroomHost:
    """A host in the planning of failover headroom. Evacuations stay within the hosts of one `kind`, for
    example of the same cell and zone.
    """

    root: str
    kind: Hashable
    usable: bool = True  # False: no new slots may be placed here
    tree: ProviderNode | None = None  # None: the host is one provider


@dataclass(frozen=True, slots=True)
class HeldSize:
    """An instance, or a slot of a reservation, with its host and its allocations."""

    consumer: str
    root: str
    held: Allocations
    why_not: str = ""  # why headroom cannot cover this instance
    group: str = ""  # the instance's anti-affinity group


@dataclass(frozen=True, slots=True)
class ApartGroup:
    """An anti-affinity group with its members on each host: instances, and those that holder consumers hold
    for.
    """

    name: str
    max_per_host: int
    on: Mapping[str, Set[str]]  # root → members there


@dataclass(frozen=True, slots=True)
class HeadroomState:
    """The hosts, instances, slots and domains at one moment.

    `domains`: name → roots that fail together. `problems`: sentences about instances with an unknown domain.
    """

    hosts: Mapping[str, HeadroomHost]
    packing: ProviderPacking  # of all providers of the hosts; what the slots hold counts as free
    instances: Sequence[HeldSize]
    slots: Sequence[HeldSize]
    domains: Mapping[str, frozenset[str]]
    problems: Sequence[str] = ()
    groups: Mapping[str, ApartGroup] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HeadroomPlan:
    """The result of planning failover headroom: whether the present slots suffice to evacuate any one failed
    domain, the slots to add and to remove, and why some instances cannot be evacuated with any slots.
    """

    holds: bool
    add: tuple[tuple[str, Allocations], ...] = ()  # (root, allocations) of each slot to add
    remove: tuple[str, ...] = ()
    lacking: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Apart:
    """The members of one anti-affinity group and class in a domain, of which each needs a slot of its own."""

    domain: str
    group: str  # name
    unfit: frozenset[str]  # hosts of the failed domain, and hosts with as many members as allowed
    members: int  # number of members of this class in the domain
    closing: int  # number of hosts that other evacuated members may close before the last one is evacuated


@dataclass(slots=True)
class _ClassCounts:
    """The instances and slots of one class in each domain, and its members of anti-affinity groups."""

    needed: Counter[str] = field(default_factory=Counter)  # domain → instances in it
    inside: Counter[str] = field(default_factory=Counter)  # domain → slots in it
    at: Counter[str] = field(default_factory=Counter)  # root → slots on it
    apart: list[_Apart] = field(default_factory=list)
    total: int = 0

    def lacks(self, domain: str) -> bool:
        return self.total - self.inside[domain] < self.needed[domain]

    def failing(self) -> str | None:
        return next((domain for domain in sorted(self.needed) if self.lacks(domain)), None)

    def failing_apart(self) -> _Apart | None:
        return next((apart for apart in self.apart if self._lacks_apart(apart)), None)

    def _lacks_apart(self, apart: _Apart) -> bool:
        fit = self.total - sum(self.at[root] for root in apart.unfit)
        if apart.closing:
            counts = (count for root, count in self.at.items() if root not in apart.unfit)
            fit -= sum(nlargest(apart.closing, counts))
        taken_by_others = self.needed[apart.domain] - apart.members
        return fit <= taken_by_others

    def unfit_for(self, apart: _Apart) -> Set[str]:
        """Return the hosts on which another slot does not help these members of an anti-affinity group."""
        enough = self.needed[apart.domain] - apart.members  # slots that other instances may take on one host
        return apart.unfit | {root for root, slots in self.at.items() if slots > enough}

    @property
    def holds(self) -> bool:
        return self.failing() is None and self.failing_apart() is None

    def put(self, root: str, domains: Iterable[str], sign: int) -> None:
        self.total += sign
        self.at[root] += sign
        for domain in domains:
            self.inside[domain] += sign


def headroom(state: HeadroomState) -> HeadroomPlan:
    """Return a plan of the slots to add and to remove so that the instances of any one failed domain can be
    evacuated. The plan adds few slots, but not always the fewest possible.
    """
    within, class_of = _domains_of(state), _classes_of(state)
    classes = _counted(state, within, class_of)
    lacking = _uncovered(state, class_of)
    kept = not lacking and all(counts.holds for counts in classes.values())
    remove = _surplus(state, classes, within, class_of)
    staying = {slot.consumer for slot in state.slots} - set(remove)
    add: list[tuple[str, Allocations]] = []
    with state.packing.trying() as trial:
        for slot in state.slots:
            if slot.consumer in staying:
                trial.claim(slot.held)
        for class_ in sorted(classes, key=_largest_first):
            counts = classes[class_]
            while not counts.holds:
                apart = counts.failing_apart() if (domain := counts.failing()) is None else None
                unfit = counts.unfit_for(apart) if apart is not None else state.domains[domain or ""]
                found = _host_for(class_, unfit, counts, state, within)
                if found is None:
                    lacking.append(_lacking(class_[1], domain or "", apart))
                    break
                root, allocations = found
                trial.claim(allocations)
                counts.put(root, within.get(root, ()), +1)
                add.append((root, allocations))
    return HeadroomPlan(kept, tuple(add), tuple(remove), tuple(lacking[:MOST_REASONS]))


def _surplus(
    state: HeadroomState,
    classes: Mapping[Class, _ClassCounts],
    within: Mapping[str, Sequence[str]],
    class_of: Mapping[str, Class],
) -> list[str]:
    """Return the slots that can be removed: no slots may be placed on their host, no instance has their class
    (kind of host and form), or no domain needs them for its evacuation. `within`: the domains of each host.
    """
    surplus = []
    holding_classes = {class_ for class_, counts in classes.items() if counts.holds}
    for slot in sorted(state.slots, key=lambda slot: slot.consumer):
        class_ = class_of.get(slot.consumer)
        counts = None if class_ is None else classes.get(class_)
        domains = within.get(slot.root, ())
        if counts is None or not state.hosts[slot.root].usable:
            surplus.append(slot.consumer)
            continue
        if class_ not in holding_classes:
            continue
        counts.put(slot.root, domains, -1)
        if counts.holds:
            surplus.append(slot.consumer)
        else:
            counts.put(slot.root, domains, +1)
    return surplus


def _host_for(
    class_: Class,
    unfit: Set[str],
    counts: _ClassCounts,
    state: HeadroomState,
    within: Mapping[str, Sequence[str]],
) -> tuple[str, Allocations] | None:
    """Return a host, none of `unfit`, with the allocations of one more slot of a class (a kind of hosts, and
    the form of an instance). The host with the fewest slots and instances of the class in its fullest domain
    is preferred; None if no host has enough free capacity.
    """
    (kind, form), packing = class_, state.packing
    outside = [
        (
            max((counts.inside[each] + counts.needed[each] for each in within.get(root, ())), default=0),
            counts.at[root],
            root,
        )
        for root, host in state.hosts.items()
        if host.usable and host.kind == kind and root not in unfit
        if packing.fits(root, form.amounts)
        if not form.kind or placed(form, root, host.tree, packing) is not None
    ]
    if not outside:
        return None
    root = min(outside)[-1]
    return root, placed(form, root, state.hosts[root].tree, packing) or {}


def _counted(
    state: HeadroomState, within: Mapping[str, Sequence[str]], class_of: Mapping[str, Class]
) -> dict[Class, _ClassCounts]:
    classes: dict[Class, _ClassCounts] = {}
    for instance in state.instances:
        if instance.consumer in class_of:
            counts = classes.setdefault(class_of[instance.consumer], _ClassCounts())
            for domain in within.get(instance.root, ()):
                counts.needed[domain] += 1
    for slot in state.slots:
        host = state.hosts.get(slot.root)
        class_ = class_of.get(slot.consumer)
        if class_ in classes and host is not None and host.usable:
            classes[class_].put(slot.root, within.get(slot.root, ()), +1)
    for class_, domain, group, members in _apart_members(state, within, class_of):
        roots = state.domains[domain]
        full = {root for root, there in group.on.items() if len(there) >= group.max_per_host}
        moving = set[str]().union(*(there for root, there in group.on.items() if root in roots))
        apart = _Apart(domain, group.name, roots | full, members, len(moving) - 1)
        classes[class_].apart.append(apart)
    return classes


def _apart_members(
    state: HeadroomState, within: Mapping[str, Sequence[str]], class_of: Mapping[str, Class]
) -> Iterator[tuple[Class, str, ApartGroup, int]]:
    """Yield the number of members of each anti-affinity group, by class and domain."""
    found = Counter(
        (class_of[each.consumer], domain, each.group)
        for each in state.instances
        if each.group and each.consumer in class_of
        for domain in within.get(each.root, ())
    )
    for (class_, domain, group), members in found.items():
        yield class_, domain, state.groups[group], members


def _lacking(form: Form, domain: str, apart: _Apart | None) -> str:
    amounts = ", ".join(f"{amount} {name}" for name, amount in form.total)
    if form.kind:
        amounts += " on providers like those of the instance's host"
    if apart is None:
        return f"{domain}: no host outside of it has free capacity for {amounts}"
    where = f"no further host outside of it and without members of server group {apart.group}"
    return f"{apart.domain}: {where} has free capacity for {amounts}"


def _uncovered(state: HeadroomState, class_of: Mapping[str, Class]) -> list[str]:
    reasons = Counter(
        instance.why_not or UNKNOWN for instance in state.instances if instance.consumer not in class_of
    )
    return [*state.problems, *(f"{count} instances: {why}" for why, count in sorted(reasons.items()))]


def _classes_of(state: HeadroomState) -> dict[str, Class]:
    """Return the class of each slot, and of each instance that headroom can cover, by consumer."""
    classes: dict[str, Class] = {}
    for held in (*state.instances, *state.slots):
        host = state.hosts.get(held.root)
        if host is not None and not held.why_not and (form := form_of(held.held, host.root, host.tree)):
            classes[held.consumer] = host.kind, form
    return classes


def _domains_of(state: HeadroomState) -> dict[str, list[str]]:
    within: dict[str, list[str]] = {}
    for domain, roots in state.domains.items():
        for root in roots:
            within.setdefault(root, []).append(domain)
    return within


def _largest_first(class_: Class) -> tuple[list[int], str]:
    return [-amount for _, amount in class_[1].total], repr(class_)
