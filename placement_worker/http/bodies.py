"""Convert between values and the JSON bodies of the API, for each microversion."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import asdict

from bus.claims import Choice, ConsumerClaim
from bus.reports import Inventory
from bus.resources import Consumer, Inventories, Provider
from bus.vocabulary import MAX_INT, Allocations

Json = dict[str, Any]

NOBODY = "00000000-0000-0000-0000-000000000000"  # owns what clients before 1.8 wrote
UNKNOWN = "unknown"  # the type of consumers that were written before there were types
_NEVER = -1  # a generation nothing has

_LINKS = (("inventories", 0), ("usages", 0), ("aggregates", 1), ("traits", 6), ("allocations", 11))


def provider(one: Provider, minor: int, mount: str = "") -> Json:
    here = f"{mount}/resource_providers/{one.id}"
    links = [{"rel": "self", "href": here}]
    links += [{"rel": rel, "href": f"{here}/{rel}"} for rel, since in _LINKS if since <= minor]
    answer: Json = {"uuid": one.id, "name": one.name, "generation": one.generation, "links": links}
    if minor >= 14:
        answer |= {"parent_provider_uuid": one.parent, "root_provider_uuid": one.root}
    return answer


def inventories(provider: Provider) -> Json:
    answer = {name: asdict(inventory) for name, inventory in provider.inventories.items()}
    return {"resource_provider_generation": provider.generation, "inventories": answer}


def inventory_of(provider: Provider, resource_class: str) -> Json:
    generation = {"resource_provider_generation": provider.generation}
    return asdict(provider.inventories[resource_class]) | generation


def usages_of(provider: Provider) -> Json:
    used = {name: provider.used.get(name, 0) for name in provider.inventories}
    return {"resource_provider_generation": provider.generation, "usages": used}


def traits_of(provider: Provider) -> Json:
    return {"traits": provider.traits, "resource_provider_generation": provider.generation}


def aggregates_of(provider: Provider, minor: int) -> Json:
    answer: Json = {"aggregates": provider.aggregates}
    if minor >= 19:
        answer["resource_provider_generation"] = provider.generation
    return answer


def allocations_of_provider(uuid: str, generation: int, consumers: Iterable[Consumer], minor: int) -> Json:
    answer: Json = {}
    for consumer in consumers:
        answer[consumer.id] = {"resources": consumer.allocations.get(uuid, {})}
        if minor >= 28:
            answer[consumer.id]["consumer_generation"] = consumer.generation
    return {"resource_provider_generation": generation, "allocations": answer}


def allocations_of_consumer(consumer: Consumer | None, generations: Mapping[str, int], minor: int) -> Json:
    if consumer is None or not consumer.allocations:
        return {"allocations": {}}
    answer: Json = {
        "allocations": {
            uuid: {"resources": resources, "generation": generations.get(uuid, 0)}
            for uuid, resources in consumer.allocations.items()
        }
    }
    if minor >= 12:
        answer |= {"project_id": consumer.project, "user_id": consumer.user}
    if minor >= 28:
        answer["consumer_generation"] = consumer.generation
    if minor >= 38:
        answer["consumer_type"] = consumer.type or UNKNOWN
    return answer


def usages(
    used: Mapping[str, Mapping[str, int]], consumers: Mapping[str, int], kind: str, minor: int
) -> Json:
    """Return the usages of a project for one consumer type, for `all` types in one sum, or (empty) for each
    type.
    """
    if minor < 38:
        return {"usages": _summed(used)}
    if kind == "all":
        if not used:
            return {"usages": {}}
        return {"usages": {kind: _summed(used) | {"consumer_count": sum(consumers.values())}}}
    chosen = used if not kind else {name: amounts for name, amounts in used.items() if name == kind}
    return {
        "usages": {
            name: dict(amounts) | {"consumer_count": consumers.get(name, 0)}
            for name, amounts in chosen.items()
        }
    }


def _summed(used: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for amounts in used.values():
        total.update(amounts)
    return dict(total)


# What is asked. Schemas take 1.0 for 1.


def generation_in(body: Json, key: str = "resource_provider_generation") -> int:
    """Return the generation in a client's body."""
    return int(body[key]) if 0 <= body[key] < 2**62 else _NEVER


def inventory_from(body: Json) -> Inventory:
    return Inventory(
        total=int(body["total"]),
        reserved=int(body.get("reserved", 0)),
        min_unit=int(body.get("min_unit", 1)),
        max_unit=int(body.get("max_unit", MAX_INT)),
        step_size=int(body.get("step_size", 1)),
        allocation_ratio=float(body.get("allocation_ratio", 1.0)),
    )


def inventories_from(body: Json) -> Inventories:
    return {name: inventory_from(stock) for name, stock in body.items()}


def claim_from(consumer: str, body: Json, minor: int) -> ConsumerClaim:
    key = "consumer_generation"
    return ConsumerClaim(
        consumer=consumer,
        generation=generation_in(body, key) if body.get(key) is not None else None,
        fenced=minor >= 28,
        choices=(Choice(_allocations_from(body["allocations"])),),
        project=body.get("project_id", NOBODY),
        user=body.get("user_id", NOBODY),
        type=body.get("consumer_type"),
        client=True,
    )


def _allocations_from(body: Any) -> Allocations:
    if isinstance(body, dict):
        return {uuid: _amounts(share["resources"]) for uuid, share in body.items()}
    found: Allocations = {}
    for share in body:
        found.setdefault(share["resource_provider"]["uuid"], {}).update(_amounts(share["resources"]))
    return found


def _amounts(resources: Mapping[str, float]) -> dict[str, int]:
    return {name: int(amount) for name, amount in resources.items()}
