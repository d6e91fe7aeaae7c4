"""Decides which consumers can be adopted: those that are on exactly one host of one cell; for all others it
gives the reason.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from berth.operations.old_servers import OldServer
from bus.claims import Choice
from bus.guests import BuildAdoptRequested
from bus.messages import Selection
from bus.requests import BuildSpec, Flavor
from bus.resources import Consumer, Provider
from bus.vocabulary import Allocations

SHARES = "MISC_SHARES_VIA_AGGREGATE"  # the trait of a pool
NOBODY = "00000000-0000-0000-0000-000000000000"  # owns what was written before there were owners
_FIGURES = {"VCPU": "vcpus", "MEMORY_MB": "memory_mb", "DISK_GB": "disk_gb"}
_UNNAMED = "adopted"  # name of a flavor whose name is unknown


@dataclass(frozen=True)
class Judged:
    """A consumer with what would be asked of its cell; or why it is not certain enough."""

    consumer: str
    request: BuildAdoptRequested | None = None
    why: str = ""


def judge(
    consumer: Consumer,
    providers: Mapping[str, Provider],
    server: OldServer | None,
    *,
    named: bool,
    foreign: Collection[str] = (),
) -> Judged:
    """Return the adoption request of this consumer, or why it cannot be adopted.

    `named`: the operator says that it is an instance. `foreign`: agents of another system.
    """
    home = _home(consumer, providers)
    why = home if isinstance(home, str) else ""
    why = _no_instance(consumer, named=named or server is not None) or why
    if not isinstance(home, str):
        why = why or _not_told_of(home, foreign) or _contradiction(consumer, home, server)
    if why or isinstance(home, str):
        return Judged(consumer.id, why=why)
    server = server or OldServer()
    spec = BuildSpec(
        flavor=flavor_of(consumer.allocations, server),
        project=_known(consumer.project, server.project),
        user=_known(consumer.user, server.user),
        name=server.name,
    )
    chosen = Selection(
        root=home.root, host=home.host, agent=home.agent, choice=Choice(allocations=consumer.allocations)
    )
    return Judged(
        consumer.id,
        BuildAdoptRequested(
            build=consumer.id, cell=home.cell, chosen=chosen, generation=consumer.generation, spec=spec
        ),
    )


def flavor_of(held: Allocations, server: OldServer) -> Flavor:
    """Return a flavor that requests exactly the allocations, with a group for each provider if a class is
    on several.
    """
    where: dict[str, dict[str, int]] = defaultdict(dict)
    for provider, resources in sorted(held.items()):
        for name, amount in resources.items():
            where[name][provider] = amount
    figures: dict[str, int] = {}
    specs = {name: value for name, value in server.extra_specs.items() if not name.startswith("resources")}
    groups: dict[str, str] = {}
    for name, amounts in sorted(where.items()):
        if len(amounts) == 1:
            (amount,) = amounts.values()
            if name in _FIGURES:
                figures[_FIGURES[name]] = amount
            else:
                specs[f"resources:{name}"] = str(amount)
            continue
        for provider, amount in amounts.items():
            group = groups.setdefault(provider, str(len(groups) + 1))
            specs[f"resources{group}:{name}"] = str(amount)
    if len(groups) > 1:
        specs["group_policy"] = "isolate"
    return Flavor(name=server.flavor or _UNNAMED, **figures, extra_specs=specs)


def _no_instance(consumer: Consumer, *, named: bool) -> str:
    if not consumer.client:
        return "berth itself claimed for it last, not a client of the API: it was not brought over"
    if consumer.type is None and not named:
        return "nobody knows whether it is an instance, for it has no type: name it, or bring a file"
    if consumer.type not in (None, "INSTANCE"):
        return f"it is no instance: its type is {consumer.type}"
    return ""


def _home(consumer: Consumer, providers: Mapping[str, Provider]) -> Provider | str:
    """Return the consumer's host as a provider of its tree, or why there is none."""
    trees: dict[str, Provider] = {}
    pools = set()
    for id_ in consumer.allocations:
        provider = providers.get(id_)
        if provider is None:
            return f"provider {id_}: it has gone meanwhile"
        if not provider.cell and SHARES in provider.traits:
            pools.add(provider.root)
        else:
            trees[provider.root] = provider
    if not trees:
        return "it holds nothing of a host" + (", only of pools" if pools else "")
    if len(trees) > 1:
        called = ", ".join(sorted(provider.host or root for root, provider in trees.items()))
        return f"it holds something of {len(trees)} hosts ({called}): perhaps it was just being moved"
    ((root, one),) = trees.items()
    if not one.cell:
        return f"its host {root} is of no cell: `berth provider reset {root} --cell NAME` gives it to one"
    if one.gone:
        return f"its host {one.host or root} is gone, its agent says"
    if not one.agent or not one.host:
        return f"no agent of cell {one.cell} has reported its host {root} yet"
    return one


def _not_told_of(home: Provider, foreign: Collection[str]) -> str:
    """Return why no agent would adopt the instance."""
    if home.agent in foreign:
        return f"its host {home.host} is of agent {home.agent}, which is none of berth's"
    return ""


def _contradiction(consumer: Consumer, home: Provider, server: OldServer | None) -> str:
    """Return what the file states differently from placement, or an empty string."""
    if server is None:
        return ""
    if server.host and server.host not in (home.host, home.root):
        return f"the file has it on {server.host}, placement on {home.host}"
    if server.project and consumer.project not in (NOBODY, server.project):
        return f"the file gives it to project {server.project}, placement to {consumer.project}"
    totals: dict[str, int] = defaultdict(int)
    for resources in consumer.allocations.values():
        for name, amount in resources.items():
            totals["VCPU" if name == "PCPU" else name] += amount
    for class_, name in _FIGURES.items():
        said = server.figures.get(name)
        if said is not None and said != totals[class_]:
            return f"the file gives it {said} {name}, placement {totals[class_]} {class_}"
    return ""


def _known(owner: str, otherwise: str) -> str:
    return otherwise if owner == NOBODY and otherwise else owner
