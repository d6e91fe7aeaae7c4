"""The policy of a server group, judged for one consumer at a time.

A consumer is on the roots of the trees with its allocations. Sharing providers do not count, unless it holds
nothing else.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from bus.claims import GroupPolicyViolated
from bus.groups import GroupPolicy

HARD: tuple[GroupPolicy, ...] = ("affinity", "anti-affinity")  # soft policies only affect weights


@dataclass(slots=True)
class _Headcount:
    """The number of consumers of each instance on each root: an instance may have several."""

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
    """A server group with the hosts of its members.

    A holder consumer keeps other members away from its host, except the member that it holds the place for,
    and attracts none.
    """

    id: int
    uuid: str
    name: str
    project: str
    policy: GroupPolicy
    max_per_host: int
    places: dict[str, frozenset[str]] = field(default_factory=dict)  # consumer → roots
    holder_consumers: dict[str, str] = field(
        default_factory=dict
    )  # holder consumers → the consumer they hold for
    _all: _Headcount = field(default_factory=_Headcount)
    _members: _Headcount = field(default_factory=_Headcount)

    def put(self, consumer: str, roots: frozenset[str], keeps_for: str | None = None) -> None:
        """Set the hosts of this consumer, as a member or as a holder consumer of one."""
        self.drop(consumer)
        self.places[consumer] = roots
        self._all.count(keeps_for or consumer, roots, +1)
        if keeps_for:
            self.holder_consumers[consumer] = keeps_for
        else:
            self._members.count(consumer, roots, +1)

    def drop(self, consumer: str) -> None:
        roots = self.places.pop(consumer, frozenset())
        keeps_for = self.holder_consumers.pop(consumer, None)
        self._all.count(keeps_for or consumer, roots, -1)
        if keeps_for is None:
            self._members.count(consumer, roots, -1)

    def refusal(self, roots: frozenset[str], who: str) -> GroupPolicyViolated | None:
        """Return why this consumer may not use the roots."""
        if self.policy == "anti-affinity":
            for root in sorted(roots):
                there = self._all.on.get(root, {})
                if (others := len(there) - (who in there)) >= self.max_per_host:
                    return self._crowded(root, others)
        elif self.policy == "affinity" and self._members.on and not roots & self._members.on.keys():
            return self._crowded(min(roots), 0) if roots else None
        return None

    def breaches(self) -> Iterator[str]:
        """Yield a sentence for each violation of a hard policy."""
        if self.policy == "anti-affinity":
            for root, there in sorted(self._all.on.items()):
                if len(there) > self.max_per_host:
                    yield f"{len(there)} on {root}, where {self.max_per_host} may be"
        elif self.policy == "affinity":
            members = len(self.places) - len(self.holder_consumers)
            if members and all(len(there) < members for there in self._members.on.values()):
                yield f"its members are apart, on {', '.join(sorted(self._members.on))}"

    def _crowded(self, root: str, there: int) -> GroupPolicyViolated:
        return GroupPolicyViolated(provider=root, group=self.uuid, policy=self.policy, members=there)


def roots_of(places: Iterable[tuple[str, bool]]) -> frozenset[str]:
    """Return the roots of the allocations. Each place is a provider's root, and whether it shares with other
    trees.
    """
    listed = list(places)
    own = frozenset(root for root, shares in listed if not shares)
    return own or frozenset(root for root, _ in listed)
