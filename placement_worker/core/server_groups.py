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
    """Whose guests are on each root, by how many consumers each: of one instance there may be several."""

    on: dict[str, dict[str, int]] = field(default_factory=dict)

    def count(self, whose: str, roots: Iterable[str], sign: int) -> None:
        for root in roots:
            there = self.on.setdefault(root, {})
            there[whose] = there.get(whose, 0) + sign
            if not there[whose]:
                del there[whose]
            if not there:
                del self.on[root]


@dataclass(slots=True)
class GroupPlaces:
    """A server group, and where its members are.

    Who keeps the place of a member keeps others away from where the guest may still be, though never that
    member itself; and draws nobody.
    """

    id: int
    uuid: str
    name: str
    project: str
    policy: GroupPolicy
    max_per_host: int
    places: dict[str, frozenset[str]] = field(default_factory=dict)  # consumer → roots
    keepers: dict[str, str] = field(default_factory=dict)  # which of them are no members → for whom they keep
    _all: _Headcount = field(default_factory=_Headcount)
    _members: _Headcount = field(default_factory=_Headcount)

    def put(self, consumer: str, roots: frozenset[str], keeps_for: str | None = None) -> None:
        """It is there now, and nowhere else: as a member, or to keep the place of one."""
        self.drop(consumer)
        self.places[consumer] = roots
        self._all.count(keeps_for or consumer, roots, +1)
        if keeps_for:
            self.keepers[consumer] = keeps_for
        else:
            self._members.count(consumer, roots, +1)

    def drop(self, consumer: str) -> None:
        roots = self.places.pop(consumer, frozenset())
        keeps_for = self.keepers.pop(consumer, None)
        self._all.count(keeps_for or consumer, roots, -1)
        if keeps_for is None:
            self._members.count(consumer, roots, -1)

    def refusal(self, roots: frozenset[str], who: str) -> Crowded | None:
        """Why this one may not come to these; None when it may."""
        if self.policy == "anti-affinity":
            for root in sorted(roots):
                there = self._all.on.get(root, {})
                if (others := len(there) - (who in there)) >= self.max_per_host:
                    return self._crowded(root, others)
        elif self.policy == "affinity" and self._members.on and not roots & self._members.on.keys():
            return self._crowded(min(roots), 0) if roots else None
        return None

    def breaches(self) -> Iterator[str]:
        """A sentence for everything that a hard policy forbids."""
        if self.policy == "anti-affinity":
            for root, there in sorted(self._all.on.items()):
                if len(there) > self.max_per_host:
                    yield f"{len(there)} on {root}, where {self.max_per_host} may be"
        elif self.policy == "affinity":
            members = len(self.places) - len(self.keepers)
            if members and all(len(there) < members for there in self._members.on.values()):
                yield f"its members are apart, on {', '.join(sorted(self._members.on))}"

    def _crowded(self, root: str, there: int) -> Crowded:
        return Crowded(provider=root, group=self.uuid, policy=self.policy, members=there)


def roots_of(places: Iterable[tuple[str, bool]]) -> frozenset[str]:
    """Of what is held: of each provider its root, and whether it shares with other trees."""
    listed = list(places)
    own = frozenset(root for root, shares in listed if not shares)
    return own or frozenset(root for root, _ in listed)
