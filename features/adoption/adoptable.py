"""Reads another system's list of instances (servers); decides which consumers berth can adopt as builds."""

import csv
import io
import json
import uuid
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from berth.kit import BadSetting
from bus.claims import Choice
from bus.messages import Selection
from bus.reports import SHARES
from bus.requests import BuildSpec, Flavor
from bus.resources import Consumer, Provider
from bus.vocabulary import UNSAID_ID, Allocations
from features.adoption.messages import BuildAdoptRequested

# The names in `openstack server list --long` and in Nova's database; case, - and spaces do not matter.
_CALLED = {
    "uuid": ("uuid", "id", "instance_uuid", "server_id"),
    "name": ("name", "display_name"),
    "host": ("host", "os_ext_srv_attr:host", "hypervisor_hostname", "os_ext_srv_attr:hypervisor_hostname"),
    "flavor": ("flavor", "flavor_name", "instance_type"),
    "project": ("project", "project_id", "tenant_id"),
    "user": ("user", "user_id"),
}
_LISTED_AMOUNTS = {"vcpus": ("vcpus",), "memory_mb": ("memory_mb", "ram")}


@dataclass(frozen=True)
class OldServer:
    """An instance in the list that another system has exported; fields that the list lacks are empty."""

    name: str = ""
    host: str = ""
    flavor: str = ""
    project: str = ""
    user: str = ""
    figures: Mapping[str, int] = field(default_factory=dict)
    extra_specs: Mapping[str, str] = field(default_factory=dict)


def old_servers(path: Path) -> dict[str, OldServer]:
    """Return the instances in a file that another system has exported, by uuid: JSON, JSON lines, YAML or CSV
    with a header.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as problem:
        raise BadSetting(f"{path}: {problem.strerror}") from None
    except UnicodeDecodeError:
        raise BadSetting(f"{path}: is not text") from None
    found: dict[str, OldServer] = {}
    for position, row in enumerate(_rows(path, text), start=1):
        where = f"{path}: entry {position}"
        if not isinstance(row, Mapping):
            raise BadSetting(f"{where}: is no object with names")
        id_, server = _server(where, row)
        if found.setdefault(id_, server) != server:
            raise BadSetting(f"{where}: contradicts an earlier entry of {id_}")
    return found


def _rows(path: Path, text: str) -> Iterator[Any]:
    try:
        match path.suffix.lower():
            case ".csv":
                yield from csv.DictReader(io.StringIO(text))
            case ".yaml" | ".yml":
                from yaml import YAMLError, safe_load  # type: ignore[import-untyped]

                try:
                    loaded = safe_load(text)
                except (YAMLError, RecursionError) as problem:
                    raise BadSetting(f"{path}: is no YAML: {problem}") from None
                yield from loaded if isinstance(loaded, list) else [loaded]
            case _ if text.lstrip().startswith("["):
                yield from json.loads(text)
            case _:
                yield from (json.loads(line) for line in text.splitlines() if line.strip())
    except (json.JSONDecodeError, RecursionError) as problem:
        raise BadSetting(f"{path}: is no JSON: {problem}") from None


def _server(where: str, row: Mapping[str, Any]) -> tuple[str, OldServer]:
    fields = {_plain(str(name)): value for name, value in row.items()}
    texts = {name: _notifier(where, name, _first(fields, called)) for name, called in _CALLED.items()}
    try:
        id_ = str(uuid.UUID(texts.pop("uuid")))
    except ValueError:
        raise BadSetting(f"{where}: uuid: is missing or invalid") from None
    flavor: Mapping[str, Any] = next(
        (fields[name] for name in _CALLED["flavor"] if isinstance(fields.get(name), Mapping)), {}
    )
    more = {_plain(str(name)): value for name, value in flavor.items()}
    specs = more.get("extra_specs") or {}
    if not isinstance(specs, Mapping):
        raise BadSetting(f"{where}: flavor.extra_specs: is no object with names")
    amounts = {name: _first({**fields, **more}, called) for name, called in _LISTED_AMOUNTS.items()}
    figures = {name: _number(where, name, size) for name, size in amounts.items() if size not in ("", None)}
    return id_, OldServer(
        **texts, figures=figures, extra_specs={str(name): str(value) for name, value in specs.items()}
    )


def _first(fields: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((fields[name] for name in names if fields.get(name) not in (None, "")), "")


def _notifier(where: str, name: str, value: Any) -> str:
    if isinstance(value, Mapping):  # a flavor as in Nova's API
        value = value.get("original_name") or value.get("name") or ""
    if not isinstance(value, str | int):
        raise BadSetting(f"{where}: {name}: {value!r} is no text")
    text = str(value).strip()
    if len(text) > (200 if name == "flavor" else 255):
        raise BadSetting(f"{where}: {name}: is too long")
    return text


def _number(where: str, name: str, value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        raise BadSetting(f"{where}: {name}: {value!r} is no number") from None


def _plain(name: str) -> str:
    return name.strip().lower().replace("-", "_").replace(" ", "_")


NOBODY = UNSAID_ID  # the project of older consumers
_FIGURES = {"VCPU": "vcpus", "MEMORY_MB": "memory_mb", "DISK_GB": "disk_gb"}
_UNNAMED = "adopted"  # name of a flavor without a known name


@dataclass(frozen=True)
class Judged:
    """The judgement on a consumer: the request for its adoption, or the reason why berth cannot adopt it."""

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
    """Return the request for the adoption of a consumer, or the reason why berth cannot adopt it. `server`:
    the consumer in the other system's list; `named`: the operator names the consumer; `foreign`: agents of
    other systems.
    """
    why, home = _no_instance(consumer, named=named or server is not None), _home(consumer, providers)
    if isinstance(home, str):
        return Judged(consumer.id, why=why or home)
    if not why and home.agent in foreign:
        why = f"its host {home.host} is of agent {home.agent}, which is no agent of berth"
    if why := why or _contradiction(consumer, home, server):
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
    request = BuildAdoptRequested(
        build=consumer.id, cell=home.cell, chosen=chosen, generation=consumer.generation, spec=spec
    )
    return Judged(consumer.id, request)


def flavor_of(held: Allocations, server: OldServer) -> Flavor:
    """Return a flavor that requests exactly the resources of the allocations `held`, with the name and the
    extra specs of `server`.

    A resource class allocated from several providers is requested in one request group for each provider.
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
        return "it has no consumer type, so it may not be an instance: name it, or use a file"
    if consumer.type not in (None, "INSTANCE"):
        return f"it is no instance: its type is {consumer.type}"
    return ""


def _home(consumer: Consumer, providers: Mapping[str, Provider]) -> Provider | str:
    """Return a provider of the only host on which a consumer has allocations; allocations from pools are
    ignored. Return, as text, why berth cannot adopt the consumer if it has no or several hosts, or if the
    host was deleted or has no cell or agent.
    """
    trees: dict[str, Provider] = {}
    pools = set()
    for id_ in consumer.allocations:
        provider = providers.get(id_)
        if provider is None:
            return f"provider {id_}: it was deleted"
        if not provider.cell and SHARES in provider.traits:
            pools.add(provider.root)
        else:
            trees[provider.root] = provider
    if not trees:
        return "it holds nothing of a host" + (", only of pools" if pools else "")
    if len(trees) > 1:
        called = ", ".join(sorted(provider.host or root for root, provider in trees.items()))
        return f"it holds something of {len(trees)} hosts ({called}): perhaps it was just being moved"
    ((root, tree),) = trees.items()
    if not tree.cell:
        return f"its host {root} is of no cell: `berth resource provider reset {root} --cell NAME` assigns it"
    if tree.gone:
        return f"its host {tree.host or root} is deleted, as its agent reported"
    if not tree.agent or not tree.host:
        return f"no agent of cell {tree.cell} has reported its host {root} yet"
    return tree


def _contradiction(consumer: Consumer, home: Provider, server: OldServer | None) -> str:
    """Return how the other system's list contradicts placement about a consumer; empty if they agree."""
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
        given = server.figures.get(name)
        if given is not None and given != totals[class_]:
            return f"the file gives it {given} {name}, placement {totals[class_]} {class_}"
    return ""


def _known(owner: str, otherwise: str) -> str:
    return otherwise if owner == NOBODY and otherwise else owner
