"""Who may be on which host: the policy of a server group, judged for one consumer at a time.

A consumer is on the roots of the trees it holds something of. What is shared with other trees says nothing of
where a guest is, unless it is all that is held.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from bus.claims import Crowded
from bus.groups import GroupPolicy

HARD: tuple[GroupPolicy, ...] = ("affinity", "anti-affinity")  # soft ones are wishes: they never refuse


@dataclass(slots=True)
class _Headcount:
    """How many are on each root, where there is anybody."""

    on: dict[str, int] = field(default_factory=dict)

    def count(self, roots: Iterable[str], sign: int) -> None:
        for root in roots:
            there = self.on.get(root, 0) + sign
            if there:
                self.on[root] = there
            else:
                del self.on[root]


@dataclass(slots=True)
class GroupPlaces:
    """A server group, and where its members are.

    A clean-up that took after a member keeps others away from where the guest may still be; it draws nobody.
    """

    id: int
    uuid: str
    name: str
    project: str
    policy: GroupPolicy
    max_per_host: int
    places: dict[str, frozenset[str]] = field(default_factory=dict)  # consumer → roots
    clean_ups: set[str] = field(default_factory=set)  # which of them are no members any more
    _all: _Headcount = field(default_factory=_Headcount)
    _members: _Headcount = field(default_factory=_Headcount)

    def put(self, consumer: str, roots: frozenset[str], *, clean_up: bool) -> None:
        """It is there now, and nowhere else."""
        self.drop(consumer)
        self.places[consumer] = roots
        self._all.count(roots, +1)
        if clean_up:
            self.clean_ups.add(consumer)
        else:
            self._members.count(roots, +1)

    def drop(self, consumer: str) -> None:
        roots = self.places.pop(consumer, frozenset())
        self._all.count(roots, -1)
        if consumer in self.clean_ups:
            self.clean_ups.remove(consumer)
        else:
            self._members.count(roots, -1)

    def refusal(self, roots: frozenset[str]) -> Crowded | None:
        """Why one more may not come to these; None when it may."""
        if self.policy == "anti-affinity":
            for root in sorted(roots):
                if (there := self._all.on.get(root, 0)) >= self.max_per_host:
                    return self._crowded(root, there)
        elif self.policy == "affinity" and self._members.on and not roots & self._members.on.keys():
            return self._crowded(min(roots), 0) if roots else None
        return None

    def breaches(self) -> Iterator[str]:
        """A sentence for everything that a hard policy forbids."""
        if self.policy == "anti-affinity":
            for root, there in sorted(self._all.on.items()):
                if there > self.max_per_host:
                    yield f"{there} on {root}, where {self.max_per_host} may be"
        elif self.policy == "affinity":
            members = len(self.places) - len(self.clean_ups)
            if members and members not in self._members.on.values():
                yield f"its members are apart, on {', '.join(sorted(self._members.on))}"

    def _crowded(self, root: str, there: int) -> Crowded:
        return Crowded(provider=root, group=self.uuid, policy=self.policy, members=there)


def roots_of(places: Iterable[tuple[str, bool]]) -> frozenset[str]:
    """Of what is held: of each provider its root, and whether it shares with other trees."""
    listed = list(places)
    own = frozenset(root for root, shares in listed if not shares)
    return own or frozenset(root for root, _ in listed)
