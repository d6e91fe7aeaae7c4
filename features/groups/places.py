"""The hosts of a server group's members, against which claims check the group's policy and topology."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from bus.claims import RuleRefused
from features.groups.constraints import NO_TOPOLOGY, DomainConstraints
from features.groups.domains import GroupDomains
from features.groups.messages import GroupPolicy

HARD: tuple[GroupPolicy, ...] = ("affinity", "anti-affinity")  # other policies affect only weights of hosts


def no_group(group: str) -> RuleRefused:
    """Return the refusal of a claim that names a server group which the project does not have."""
    why = f"server group {group}: it does not exist in this project"
    return RuleRefused(rule="groups", code="no_server_group", why=why, final=True)


# Root → instance → number of its consumers there: the instance itself and its holder consumers.
_Headcount = dict[str, Counter[str]]


def _count(on: _Headcount, whose: str, roots: Iterable[str], sign: int) -> None:
    for root in roots:
        members = on.setdefault(root, Counter())
        members[whose] += sign
        if not members[whose]:
            del members[whose]
        if not members:
            del on[root]


@dataclass(slots=True)
class GroupPlaces:
    """A server group and its members' hosts. For anti-affinity, holder consumers count as members, too."""

    id: int
    uuid: str
    name: str
    project: str
    policy: GroupPolicy
    max_per_host: int
    topology: DomainConstraints = NO_TOPOLOGY
    places: dict[str, frozenset[str]] = field(default_factory=dict)  # consumer → roots
    holder_consumers: dict[str, str] = field(default_factory=dict)  # holder consumer → the member it is for
    _all: _Headcount = field(default_factory=dict)
    _members: _Headcount = field(default_factory=dict)
    labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # root → level → label

    @property
    def size(self) -> int:
        """Return the number of members, without holder consumers."""
        return len(self.places) - len(self.holder_consumers)

    def put(self, consumer: str, roots: frozenset[str], keeps_for: str | None = None) -> None:
        """Record the hosts of a member of the server group, or of a holder consumer; a holder consumer holds
        the former place of the member `keeps_for`.
        """
        self.drop(consumer)
        self.places[consumer] = roots
        _count(self._all, keeps_for or consumer, roots, +1)
        if keeps_for:
            self.holder_consumers[consumer] = keeps_for
        else:
            _count(self._members, consumer, roots, +1)

    def drop(self, consumer: str) -> None:
        """Forget a consumer, because it has no allocations any more."""
        roots = self.places.pop(consumer, frozenset())
        keeps_for = self.holder_consumers.pop(consumer, None)
        _count(self._all, keeps_for or consumer, roots, -1)
        if keeps_for is None:
            _count(self._members, consumer, roots, -1)

    @property
    def is_checked(self) -> bool:
        """Return whether claims check the group: not if it has only a soft policy, which affects only the
        weights of hosts.
        """
        return self.policy in HARD or self.topology.is_required

    def refusal(self, roots: frozenset[str], consumer: str) -> RuleRefused | None:
        """Return a refusal if the policy forbids the consumer on the given roots; else None."""
        if self.policy == "anti-affinity":
            for root in sorted(roots):
                members = self._all.get(root, Counter())
                if (other_members := len(members) - (consumer in members)) >= self.max_per_host:
                    return self._crowded(root, other_members)
        elif self.policy == "affinity" and self._members and not roots & self._members.keys():
            return self._crowded(min(roots), 0) if roots else None
        return None

    def topology_refusal(self, roots: frozenset[str], consumer: str) -> RuleRefused | None:
        """Return a refusal if the required topology forbids the consumer on the given roots; else None."""
        if not roots:
            return None
        domains = GroupDomains(self.topology, self.labels)
        return domains.refusal(roots, consumer, self._members, self._all)

    def breaches(self) -> Iterator[str]:
        """Yield a sentence for each violation of the server group's policy, unless it is soft, and of its
        required topology.
        """
        if self.policy == "anti-affinity":
            for root, on_host in sorted(self._all.items()):
                if len(on_host) > self.max_per_host:
                    yield f"{len(on_host)} on {root}, where {self.max_per_host} may be"
        elif self.policy == "affinity":
            members = self.size
            if members and all(len(on_host) < members for on_host in self._members.values()):
                yield f"its members are apart, on {', '.join(sorted(self._members))}"
        if self.topology.is_required:
            yield from GroupDomains(self.topology, self.labels).breaches(self._members, self._all)

    def _crowded(self, root: str, members: int) -> RuleRefused:
        why = f"{root}: {self.policy}: {members or 'no'} members of server group {self.uuid} there"
        return RuleRefused(rule="groups", code="server_group", why=why, provider=root)
