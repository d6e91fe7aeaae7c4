"""Computes which hosts constraints on domains (pack, spread) permit, given the hosts of placed instances."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from bus.candidates import Bools, CandidateSource, Ints
from bus.domains import HOST
from bus.vocabulary import Id
from features.groups.messages import ServerGroup
from scheduler_worker.extension import AllowedHosts


@dataclass(frozen=True, slots=True)
class Constraints:
    """The levels to pack (all instances into one domain) and the levels to spread (over several domains)."""

    pack: tuple[str, ...] = ()
    spread: tuple[tuple[str, int], ...] = ()  # each: a level, and the most instances in one of its domains
    loose_pack: str = ""  # a preferred pack level that no domain satisfies: use as few domains as possible

    def __str__(self) -> str:
        parts = [f"pack {level}" for level in self.pack]
        parts += [f"spread {level}:{most}" for level, most in self.spread]
        return ", ".join(parts) or "no constraint"


def attempts(group: ServerGroup | None) -> Iterator[Constraints]:
    """Yield the constraints of a server group in the order in which to try them: with all preferred
    constraints, then with fewer, and last only the required constraints. Without a group, yield empty
    constraints.
    """
    if group is None:
        yield Constraints()
        return
    topology = group.topology
    pack = (HOST,) if group.policy == "affinity" else ()
    spread = ((HOST, group.max_per_host),) if group.policy == "anti-affinity" else ()
    for weak_pack in _strengths(topology.pack, topology.required_pack):
        for weak_spread in _strengths(topology.spread, topology.required_spread):
            yield Constraints(
                pack=(*pack, *_kept(topology.pack, weak_pack)),
                spread=(
                    *spread,
                    *((level, topology.max_per_domain) for level in _kept(topology.spread, weak_spread)),
                ),
                loose_pack=topology.pack if weak_pack else "",
            )


def _strengths(level: str, required: str) -> tuple[bool, ...]:
    return (False, True) if level and not required else (False,)


def _kept(level: str, weak: bool) -> tuple[str, ...]:
    return (level,) if level and not weak else ()


def required_constraints(group: ServerGroup) -> Constraints:
    """Return the required constraints of a server group. Every claim of a member checks them."""
    *_, last = attempts(group)
    return last


def open_hosts(mask: Bools, name: str, why: Callable[[str], str] = lambda root: "") -> AllowedHosts:
    """Return the restriction of a request to the hosts whose domains constraints permit. `why` returns the
    reason why the host with a root is not permitted, or "".
    """
    return AllowedHosts(mask, name, "topology", lambda root: why(root) or f"its domain is not open: {name}")


@dataclass(slots=True)
class Level:
    """The domains of one level: for each position in placement's index the number of its domain, or 0."""

    name: str
    ids: Ints
    labels: Sequence[str]


@dataclass
class DomainRules:
    """Constraints on domains, and the hosts of placed instances, by position in placement's index."""

    constraints: Constraints
    packs: list[Level]
    spreads: list[tuple[Level, int]]
    domains: Ints  # by position of the host: number of its domain at the packed levels; 0: no domain
    names: list[str]  # names of the domains by number
    members: dict[Id, tuple[int, ...]] = field(default_factory=dict)  # instance → positions of its hosts
    left: dict[Id, tuple[int, ...]] = field(default_factory=dict)  # guest left behind → its positions

    @classmethod
    def of(
        cls,
        source: CandidateSource,
        constraints: Constraints,
        members: Mapping[Id, Iterable[str]],
        left: Mapping[Id, Iterable[str]],
    ) -> "DomainRules":
        """Return the rules for constraints. `members` and `left` (guests left behind) map instances to the
        roots of their hosts.
        """

        def level(name: str) -> Level:
            ids, labels = source.labels(name)
            return Level(name, ids, labels)

        def positions(on: Mapping[Id, Iterable[str]]) -> dict[Id, tuple[int, ...]]:
            found = {id_: [source.position(root) for root in roots] for id_, roots in on.items()}
            return {
                id_: tuple([each for each in places if each is not None]) for id_, places in found.items()
            }

        packs = [level(name) for name in constraints.pack]
        spreads = [(level(name), most) for name, most in constraints.spread]
        domains, names = _together(packs, source.size)
        return cls(constraints, packs, spreads, domains, names, positions(members), positions(left))

    def join(self, instance: Id, position: int) -> None:
        """Count an instance on the host at this position."""
        self.members[instance] = (position,)

    def leave(self, instance: Id) -> None:
        """Count an instance no longer."""
        self.members.pop(instance, None)

    def packed_domains(self, excluding: Id | None = None) -> set[int]:
        """Return the numbers of the packed domains of all members except `excluding`. A further member must
        be placed in a returned domain, or in any domain if the result is empty.
        """
        on = [places for id_, places in self.members.items() if id_ != excluding]
        return {int(self.domains[position]) for places in on for position in places} if self.packs else set()

    def open_to(self, instance: Id | None = None) -> Bools:
        """Return a mask of the hosts, by position in the index, on which an instance may be placed (None: a
        new instance), given the hosts of all other members.
        """
        if self.packs:
            mask = self.domains > 0
            if domains := self.packed_domains(instance):
                mask &= np.isin(self.domains, list(domains))
        else:
            mask = np.ones(len(self.domains), np.bool_)
        for level, most in self.spreads:
            mask &= level.ids > 0
            if full := self.full(level, most, instance):
                mask &= ~np.isin(level.ids, full)
        return mask

    def full(self, level: Level, most: int, excluding: Id | None = None) -> list[int]:
        """Return the numbers of a level's domains with at least `most` instances, not counting
        `excluding`.
        """
        return [domain for domain, there in self.counts(level, excluding).items() if there >= most]

    def counts(self, level: Level, excluding: Id | None = None) -> dict[int, int]:
        """Return by domain of a level the number of instances and guests left behind, without `excluding`."""
        found: dict[int, int] = {}
        for id_, places in (*self.left.items(), *self.members.items()):
            if id_ != excluding:
                for domain in {int(level.ids[position]) for position in places} - {0}:
                    found[domain] = found.get(domain, 0) + 1
        return found

    def why(self, position: int | None) -> str:
        """Return why constraints do not permit the host at a position, as a sentence: it has no label of a
        level, or its domain is not permitted. The result is "" for None.
        """
        if position is None:
            return ""
        for level in self._levels():
            if not level.ids[position]:
                return f"it has no label of level {level.name}"
        domains = ", ".join(f"{level.name} {level.labels[level.ids[position]]}" for level in self._levels())
        return f"{domains} is not open: {self.constraints}"

    def _levels(self) -> tuple[Level, ...]:
        return (*self.packs, *(level for level, _ in self.spreads))

    def spread_labels(self, position: int) -> tuple[int, ...]:
        """Return the host's label at each level over which instances are spread."""
        return tuple([int(level.ids[position]) for level, _ in self.spreads])


def _together(packs: Sequence[Level], size: int) -> tuple[Ints, list[str]]:
    """Return the number of each host's domain if several levels are packed (0: no domain), and the names by
    number. Hosts with equal labels of all levels share a domain.
    """
    if not packs:
        return np.ones(size, np.intp), ["", ""]
    if len(packs) == 1:
        [level] = packs
        return level.ids, list(level.labels)
    stacked = np.stack([level.ids for level in packs])
    pairs, numbers = np.unique(stacked, axis=1, return_inverse=True)
    names = [
        "",
        *("/".join(each.labels[id_] for each, id_ in zip(packs, pair, strict=True)) for pair in pairs.T),
    ]
    labelled = (stacked > 0).all(axis=0)
    return np.where(labelled, numbers.reshape(-1) + 1, 0), names
