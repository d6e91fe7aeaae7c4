"""Random small clouds of labelled hosts, random requests for gangs, and an exhaustive search for hosts."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from bus.domains import HostLabels
from bus.messages import BuildRequested
from bus.requests import Flavor
from bus.vocabulary import Id
from features.groups.constraints import DomainConstraints
from features.groups.core.joined_group import with_group
from features.groups.messages import ServerGroup
from features.topology.messages import GangRole, topology_of
from features.topology.requests import own_group
from placement_worker.extension import ProviderState, Tree
from scheduler_worker.extension import Order, attempts_of
from scheduler_worker.testing import BUILD, RequestOptions, alternatives_of
from tests.support.ids import uid
from tests.support.index_source import source_of
from tests.support.provider_trees import state
from tests.support.ranking_builders import Hall
from tests.support.scheduler_builders import a_request

Placed = Mapping[Id, str]  # instance → root
Resources = Mapping[str, int]


@dataclass(frozen=True)
class LabelledHost:
    root: str
    free: Resources
    labels: Mapping[str, str]

    def label(self, level: str) -> str:
        return self.root if level == "host" else self.labels.get(level, "")


@dataclass
class SmallCloud:
    """Hosts with labels, and the members that a server group has there already."""

    hosts: Sequence[LabelledHost]
    members: dict[Id, str] = field(default_factory=dict)

    def hall(self) -> Hall:
        return Hall(source_of([_tree(host) for host in self.hosts]))

    def by_root(self) -> dict[str, LabelledHost]:
        return {host.root: host for host in self.hosts}

    def keeps(self, topology: DomainConstraints, placed: Placed) -> bool:
        """Return whether hosts of all instances, with the group's members, keep the required constraints."""
        hosts = self.by_root()
        everyone = [hosts[root] for root in {**self.members, **placed}.values()]
        if level := topology.required_pack:
            domains = {host.label(level) for host in everyone}
            if "" in {hosts[root].label(level) for root in placed.values()} or len(domains) > 1:
                return False
        if level := topology.required_spread:
            if "" in {hosts[root].label(level) for root in placed.values()}:
                return False
            counts = Counter(host.label(level) for host in everyone if host.label(level))
            return max(counts.values(), default=0) <= topology.max_per_domain
        return True

    def fits(self, asked: Mapping[Id, Resources], topology: DomainConstraints) -> bool:
        """Try all assignments of hosts; return whether any of them fits all instances."""
        free = {host.root: dict(host.free) for host in self.hosts}
        return any(self._assignments(list(asked.items()), free, {}, topology))

    def _assignments(
        self,
        left: Sequence[tuple[Id, Resources]],
        free: dict[str, dict[str, int]],
        placed: dict[Id, str],
        topology: DomainConstraints,
    ) -> Iterator[bool]:
        if not left:
            if self.keeps(topology, placed):
                yield True
            return
        (instance, asked), *rest = left
        for host in self.hosts:
            has = free[host.root]
            if all(has.get(name, 0) >= amount for name, amount in asked.items()):
                _take(has, asked, 1)
                placed[instance] = host.root
                yield from self._assignments(rest, free, placed, topology)
                del placed[instance]
                _take(has, asked, -1)

    def oversold(self, asked: Mapping[Id, Resources], placed: Placed) -> bool:
        free = {host.root: dict(host.free) for host in self.hosts}
        for instance, root in placed.items():
            _take(free[root], asked[instance], 1)
        return any(amount < 0 for has in free.values() for amount in has.values())


def _take(has: dict[str, int], asked: Resources, sign: int) -> None:
    for name, amount in asked.items():
        has[name] -= sign * amount


def _tree(host: LabelledHost) -> Tree:
    number = int(host.root.rsplit("-", 1)[1])
    root: ProviderState = state(number, None, {**host.free})
    labels = HostLabels(reported=dict(host.labels))
    return Tree(root.uuid, root.name, "c1", f"agent-{number}", "", 1, False, (root,), labels)


def a_host(number: int, vcpus: int = 8, ram: int = 8, **labels: str) -> LabelledHost:
    return LabelledHost(uid(number, "a"), {"VCPU": vcpus, "MEMORY_MB": ram, "DISK_GB": 100}, labels)


def a_cloud(chance: Random) -> SmallCloud:
    hosts = []
    for number in range(chance.randint(2, 6)):
        rack = chance.choice(("r1", "r1", "r2", "r2", "r3", ""))
        labels = {"row": "a" if rack in ("r1", "r2") else "b", **({"rack": rack} if rack else {})}
        if chance.random() < 0.1:
            del labels["row"]
        hosts.append(a_host(number, chance.randint(1, 6), chance.randint(1, 6), **labels))
    members = {uid(900 + n, "f"): chance.choice(hosts).root for n in range(chance.choice((0, 0, 0, 1, 2)))}
    return SmallCloud(hosts, members)


def a_topology(chance: Random) -> DomainConstraints:
    pack = chance.choice(("rack", "rack", "row", "host", ""))
    spread = chance.choice([level for level in ("", "", "rack", "host") if level != pack or not level])
    return DomainConstraints(pack=pack, spread=spread, max_per_domain=chance.choice((1, 1, 2)))


def a_flavor(name: str, vcpus: int, ram: int) -> Flavor:
    return Flavor(name=name, vcpus=vcpus, memory_mb=ram, disk_gb=1)


def a_gang(number: int, topology: DomainConstraints, *roles: tuple[int, int, int]) -> BuildRequested:
    """Return a request for a gang; each of `roles`: number of instances, and VCPU and memory of each."""
    made = tuple(
        GangRole(name=f"role{position}", flavor=a_flavor(f"f{position}", vcpus, ram), count=count)
        for position, (count, vcpus, ram) in enumerate(roles)
    )
    total = sum(role.count for role in made)
    return a_request(
        number,
        instances=total,
        flavor=made[0].flavor,
        roles=made if len(made) > 1 else (),
        topology=topology,
        alternates=2,
    )


def some_gang(chance: Random) -> BuildRequested:
    roles = [
        (chance.choice((1, 1, 2)), chance.randint(1, 4), chance.randint(1, 4))
        for _ in range(chance.choice((1, 2, 3)))
    ]
    return a_gang(1, a_topology(chance), *roles)


def asked_by(request: BuildRequested) -> dict[Id, Resources]:
    flavors = [role.flavor for role in request.parts.sections for _ in range(role.count)]
    flavors = flavors or [request.flavor] * len(request.instances)
    return {
        instance: {"VCPU": flavor.vcpus, "MEMORY_MB": flavor.memory_mb, "DISK_GB": flavor.disk_gb}
        for instance, flavor in zip(request.instances, flavors, strict=True)
    }


def order_of(hall: Hall, request: BuildRequested, members: Placed | None = None) -> Order:
    """Return the order of a request whose server group has the given members."""
    alternatives = alternatives_of(request, RequestOptions(), hall.source.named)
    attempts = attempts_of(request, alternatives)
    order = Order(request, attempts, request.instances, purpose=BUILD, alternates=request.alternates)
    if not topology_of(request.parts).levels:
        return order
    known = ServerGroup(
        id=own_group(request, None).id,
        name="g",
        policy="topology",
        project=request.project,
        topology=topology_of(request.parts),
        members={member: (root,) for member, root in (members or {}).items()},
    )
    return with_group(order, own_group(request, known))
