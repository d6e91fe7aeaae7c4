"""Checks the constraints of a server group on domains (pack, spread) against the hosts of its members."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from bus.claims import RuleRefused
from bus.domains import HOST
from features.groups.constraints import NO_TOPOLOGY, DomainConstraints

OnHosts = Mapping[str, Collection[str]]  # root → instances on this host


@dataclass(slots=True)
class GroupDomains:
    """The topology of a server group, with the labels of the hosts that a claim could use."""

    topology: DomainConstraints = NO_TOPOLOGY
    labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # root → level → label

    def label(self, root: str, level: str) -> str:
        """Return a host's domain at a level, such as the name of its rack; "" if the host has no label."""
        return root if level == HOST else self.labels.get(root, {}).get(level, "")

    def refusal(
        self, roots: frozenset[str], consumer: str, members: OnHosts, everyone: OnHosts
    ) -> RuleRefused | None:
        """Return a refusal if the constraints forbid the consumer on the given roots, else None.

        `members` are the group's instances on each root; `everyone` also has the instances whose guests may
        still be on a root.
        """
        if level := self.topology.required_pack:
            others = {root for root, there in members.items() if any(each != consumer for each in there)}
            domains = {self.label(root, level) for root in others}
            for root in sorted(roots):
                label = self.label(root, level)
                if not label or (domains and label not in domains):
                    return self._violated("pack", level, root, min(domains, default=""))
        if level := self.topology.required_spread:
            for root in sorted(roots):
                label = self.label(root, level)
                there = self._instances_in(level, label, everyone) - {consumer}
                if not label or len(there) >= self.topology.max_per_domain:
                    return self._violated("spread", level, root, "", len(there))
        return None

    def breaches(self, members: OnHosts, everyone: OnHosts) -> Iterator[str]:
        """Yield a sentence for each required constraint (pack, spread) that the members' hosts violate."""
        if level := self.topology.required_pack:
            domains = sorted({self.label(root, level) or "no label" for root in members})
            if len(domains) > 1:
                yield f"packed into one {level}, its members are in {', '.join(domains)}"
        if level := self.topology.required_spread:
            most = self.topology.max_per_domain
            for label in sorted({self.label(root, level) for root in everyone}):
                there = self._instances_in(level, label, everyone)
                if label and len(there) > most:
                    yield f"{len(there)} in {level} {label}, where {most} may be"

    def _instances_in(self, level: str, label: str, on: OnHosts) -> set[str]:
        return {each for root, there in on.items() if self.label(root, level) == label for each in there}

    def _violated(
        self, constraint: str, level: str, root: str, required: str, members: int = 0
    ) -> RuleRefused:
        label = self.label(root, level)
        why = "the host has no label of this level"
        if label:
            members_there = f"members of the group in {required}" if required else f"{members} members there"
            why = f"it is in {label}, {members_there}"
        why = f"{root}: {constraint} {level}: {why}"
        return RuleRefused(rule="topology", code="topology", why=why, provider=root)
