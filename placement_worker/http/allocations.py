"""Routes for allocations of consumers and of providers, usages, the reshaper, and allocation candidates."""

import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from bus.candidates import SenselessQuery
from bus.claims import (
    Choice,
    Claimed,
    ClaimRequested,
    ClaimResult,
    ConsumerClaim,
    ExpectedGeneration,
    Released,
    ReleaseRequested,
    Retired,
)
from bus.queries import FindCandidates
from bus.resources import Denied, Edited, FindAllocations, FindProviders, Reshape, SetInventories, Stale
from bus.vocabulary import Allocations, Missing, Resources
from placement_worker.core.fits import Fit
from placement_worker.core.index_rows import Row
from placement_worker.core.search import SearchResult
from placement_worker.http import api_call, errors, queries, schemas
from placement_worker.http.errors import bad_request, check_query
from placement_worker.http.providers import generation_in, inventories_from
from placement_worker.http.schemas import Json, at, is_uuid, is_uuid_like

NOBODY = "00000000-0000-0000-0000-000000000000"  # project and user of claims of microversions before 1.8
UNKNOWN = "unknown"  # reported type of consumers without a type


async def of_consumer(call: api_call.ApiCall) -> api_call.ApiAnswer:
    """Answer GET /allocations/CONSUMER."""
    id_ = _consumer(call)
    answer = await call.placement.lookups.allocations(FindAllocations(consumers=(id_,)))
    consumer = answer.consumers[0] if answer.consumers else None
    if consumer is None or not consumer.allocations:
        return api_call.json_answer({"allocations": {}}, consumer.updated if consumer else 0.0)
    allocations = {
        uuid: {"resources": resources, "generation": answer.generations.get(uuid, 0)}
        for uuid, resources in consumer.allocations.items()
    }
    answered: Json = {"allocations": allocations}
    if call.minor >= 12:
        answered |= {"project_id": consumer.project, "user_id": consumer.user}
    if call.minor >= 28:
        answered["consumer_generation"] = consumer.generation
    if call.minor >= 38:
        answered["consumer_type"] = consumer.type or UNKNOWN
    return api_call.json_answer(answered, consumer.updated)


async def of_provider(call: api_call.ApiCall) -> api_call.ApiAnswer:
    """Answer GET /resource_providers/UUID/allocations."""
    id_ = call.path["uuid"]
    answer = await call.placement.lookups.allocations(FindAllocations(providers=(id_,)))
    if id_ not in answer.generations:
        raise errors.not_found(f"Resource provider '{id_}' not found: {errors.no_provider(id_)}")
    held: Json = {}
    for consumer in answer.consumers:
        held[consumer.id] = {"resources": consumer.allocations.get(id_, {})}
        if call.minor >= 28:
            held[consumer.id]["consumer_generation"] = consumer.generation
    answered = {"resource_provider_generation": answer.generations[id_], "allocations": held}
    return api_call.json_answer(answered, api_call.last_change(answer.consumers))


async def usages(call: api_call.ApiCall) -> api_call.ApiAnswer:
    """Answer GET /usages."""
    query, kind = queries.usages(call.query, call.minor)
    found = await call.placement.lookups.usages(query)
    total: Counter[str] = Counter()
    for amounts in found.used.values():
        total.update(amounts)
    answer: Json = dict(total)
    if call.minor >= 38 and kind == "all":
        count = {"consumer_count": sum(found.consumers.values())}
        answer = {kind: answer | count} if found.used else {}
    elif call.minor >= 38:
        answer = {
            name: amounts | {"consumer_count": found.consumers.get(name, 0)}
            for name, amounts in found.used.items()
            if kind in ("", name)
        }
    return api_call.json_answer({"usages": answer})


async def put(call: api_call.ApiCall) -> api_call.ApiAnswer:
    """Answer PUT /allocations/CONSUMER: replace all allocations of a consumer."""
    body = await call.json(at(call.minor, schemas.PUT_ALLOCATIONS))
    id_ = _consumer(call)
    if not is_uuid(id_):
        raise errors.bad_request(f"Malformed consumer_uuid: {id_}")
    await _take(call, _claims({id_: body}, call.minor), f"Unable to allocate inventory for consumer {id_}: ")
    return api_call.empty_answer()


async def post(call: api_call.ApiCall) -> api_call.ApiAnswer:
    """Answer POST /allocations: replace the allocations of several consumers, or of none."""
    body = await call.json(at(call.minor, schemas.POST_ALLOCATIONS))
    await _take(call, _claims(body, call.minor), "Unable to allocate inventory ")
    return api_call.empty_answer()


async def delete(call: api_call.ApiCall) -> api_call.ApiAnswer:
    """Answer DELETE /allocations/CONSUMER."""
    id_ = _consumer(call)
    order = ReleaseRequested(consumer=id_, generation="any")
    match (await call.release(order)).result:
        case Released(number=0):
            raise errors.not_found(f"No allocations for consumer '{id_}'")
        case Released():
            return api_call.empty_answer()
        case Retired(why=why):  # a retired consumer has no allocations
            raise errors.Problem(404, f"No allocations for consumer '{id_}'", headers={"berth-why": why})
    raise errors.conflict(f"update conflict: {errors.CONTENDED}", errors.CONCURRENT_UPDATE)


async def reshape(call: api_call.ApiCall) -> api_call.ApiAnswer:
    """Answer POST /reshaper: change inventories and allocations in one commit."""
    body = await call.json(at(call.minor, schemas.RESHAPE))
    sets = tuple(
        SetInventories(
            provider=id_, inventories=inventories_from(part["inventories"]), generation=generation_in(part)
        )
        for id_, part in body["inventories"].items()
    )
    claims = _claims(body["allocations"], call.minor)
    match await call.edit(Reshape(inventories=sets, claims=claims)):
        case Edited():
            return api_call.empty_answer()
        case Missing(what="provider", names=names):
            raise errors.bad_request(
                f"Resource provider {names[0]} in inventories not found: {errors.no_provider(names[0])}",
                errors.PROVIDER_NOT_FOUND,
            )
        case Stale(provider=provider, actual=actual, given=given):
            raise errors.conflict(
                f"resource provider generation conflict for provider {provider}: actual: {actual},"
                f" given: {given}",
                errors.CONCURRENT_UPDATE,
            )
        case Denied(results=results):
            raise await _denied(call, results, claims, "malformed reshaper data: ")
        case result:
            raise errors.refused(result, "malformed reshaper data")


async def _take(call: api_call.ApiCall, claims: tuple[ConsumerClaim, ...], doing: str) -> None:
    results = (await call.claim(ClaimRequested(claims=claims))).results
    if not all(isinstance(result, Claimed) for result in results):
        raise await _denied(call, results, claims, doing)


async def _denied(
    call: api_call.ApiCall, results: Sequence[ClaimResult], claims: Sequence[ConsumerClaim], doing: str
) -> errors.Problem:
    """Return the API error for refused claims. A generation conflict has precedence, then an unknown
    provider, then an unknown resource class (the text begins with `doing`), then any other refusal.
    """
    problem = errors.denied(results, claims)
    named = {provider for claim in claims for choice in claim.choices for provider in choice.allocations}
    if problem.code == errors.CONCURRENT_UPDATE or not named:
        return problem
    answer = await call.placement.lookups.providers(FindProviders(ids=tuple(named), parts=()))
    missing = named - {provider.id for provider in answer.providers}
    if missing:
        return errors.bad_request(f"Allocation for resource provider '{min(missing)}' that does not exist.")
    shares = [choice.allocations.values() for claim in claims for choice in claim.choices]
    classes = {name for some in shares for share in some for name in share}
    absent = await errors.unknown(call.placement, "resource class", classes)
    return errors.bad_request(f"{doing}{errors.no_class(', '.join(absent))}") if absent else problem


def _consumer(call: api_call.ApiCall) -> str:
    given = call.path["consumer"]
    return str(uuid.UUID(given)) if is_uuid_like(given) else given


def _expected(claim: dict[str, Any], minor: int) -> ExpectedGeneration:
    """Return the generation that the consumer of a claim must have."""
    if minor < 28:
        return "any"
    key = "consumer_generation"
    return generation_in(claim, key) if claim.get(key) is not None else None


def _claims(body: Mapping[str, Any], minor: int) -> tuple[ConsumerClaim, ...]:
    """Return a claim for each consumer in an HTTP request's body; numbers such as 1.0 are converted to
    integers."""
    return tuple(
        ConsumerClaim(
            consumer=consumer,
            generation=_expected(claim, minor),
            choices=(Choice(_allocations_from(claim["allocations"])),),
            project=claim.get("project_id", NOBODY),
            user=claim.get("user_id", NOBODY),
            type=claim.get("consumer_type"),
            client=True,
        )
        for consumer, claim in body.items()
    )


def _allocations_from(body: Any) -> Allocations:
    if isinstance(body, dict):
        shares = [(provider, share["resources"]) for provider, share in body.items()]
    else:
        shares = [(share["resource_provider"]["uuid"], share["resources"]) for share in body]
    found: Allocations = {}
    for provider, resources in shares:
        found.setdefault(provider, {}).update({name: int(amount) for name, amount in resources.items()})
    return found


_BETWEEN = '","'
_LONGEST_WHY = 300  # characters of a reason in a header


async def list_all(call: api_call.ApiCall) -> api_call.ApiAnswer:
    """Answer GET /allocation_candidates."""
    query, found = await search_candidates(call, call.minor)
    headers = {}
    if found.cut and query.limit == queries.MOST_CANDIDATES:
        headers["berth-candidates-cut"] = "true"
    if not found.fits:
        headers["berth-why"] = why_none(found)
    classes = {name for group in query.groups for name in group.resources}
    requests, summaries = _requests(found.fits, call.minor), _summaries(call, found, classes)
    text = f'{{"allocation_requests":[{requests}],"provider_summaries":{{{summaries}}}}}'
    return api_call.ApiAnswer(body=text.encode("ascii"), updated=0.0, headers=headers)


async def search_candidates(call: api_call.ApiCall, minor: int) -> tuple[FindCandidates, SearchResult]:
    """Return the query for candidates in a URL, in the grammar of a minor version, and its result."""
    query = queries.candidates(call.query, minor)
    await call.placement.memory.fresh()
    await check_query(call.placement, query.groups, (*query.root_required, *query.root_forbidden))
    try:
        return query, await call.placement.searches.run(query)
    except SenselessQuery as wrong:
        raise bad_request(str(wrong)) from None


def _summaries(call: api_call.ApiCall, found: SearchResult, classes: Collection[str]) -> str:
    fits, snapshot = found.fits, found.snapshot
    rows: dict[str, Row] = {}
    if call.minor >= 29:
        for root in dict.fromkeys(row.root for fit in fits for row in fit.rows):
            rows.update((row.uuid, row) for row in snapshot.rows_of(root))
        return ",".join([row.summary or _summary(call, row, classes) for row in rows.values()])
    nested = snapshot.index.children > 0
    for fit in fits:
        for row in fit.rows:
            tree = (row,) if nested else snapshot.rows_of(row.root) or (row,)
            rows.update((row.uuid, row) for row in tree)
    return ",".join(_summary(call, row, classes) for row in rows.values())


def _summary(call: api_call.ApiCall, row: Row, classes: Collection[str]) -> str:
    names = row.capacity if call.minor >= 27 else [name for name in row.capacity if name in classes]
    used, ids = row.used, call.placement.book.traits.ids
    resources = {name: {"capacity": row.capacity[name], "used": used.get(name, 0)} for name in names}
    rendered: Json = {"resources": resources}
    if call.minor >= 17:
        rendered["traits"] = sorted(row.traits, key=lambda name: ids.get(name, len(ids)))
    if call.minor >= 29:
        rendered |= {"parent_provider_uuid": row.parent, "root_provider_uuid": row.root}
    text = f'"{row.uuid}":{api_call.encode(rendered).decode()}'
    if call.minor >= 29:
        row.summary = text
    return text


def _requests(fits: Iterable[Fit], minor: int) -> str:
    rendered: dict[int, str] = {}

    def amounts(resources: Resources) -> str:
        text = rendered.get(id(resources))
        if text is None:
            text = rendered[id(resources)] = api_call.encode(resources).decode()
        return text

    parts = []
    for fit in fits:
        if minor < 12:
            listed = [
                f'{{"resource_provider":{{"uuid":"{uuid}"}},"resources":{amounts(resources)}}}'
                for uuid, resources in fit.allocations.items()
            ]
            parts.append(f'{{"allocations":[{",".join(listed)}]}}')
            continue
        shares = ",".join(
            [f'"{uuid}":{{"resources":{amounts(resources)}}}' for uuid, resources in fit.allocations.items()]
        )
        mappings = ""
        if minor >= 34:
            listed = [f'"{suffix}":["{_BETWEEN.join(uuids)}"]' for suffix, uuids in fit.mappings.items()]
            mappings = f',"mappings":{{{",".join(listed)}}}'
        parts.append(f'{{"allocations":{{{shares}}}{mappings}}}')
    return ",".join(parts)


def why_none(found: SearchResult) -> str:
    """Return a sentence that explains why no host fits a query."""
    if not found.considered:
        return "there are no providers"
    parts = []
    emptied = [removal for removal in found.removals if not removal.left]
    if emptied:
        parts.append(f"of {found.considered}, no host remains after: {emptied[0].constraint}")
    if found.nearest:
        parts.append(f"closest is {found.nearest[0].host}, which lacks {found.nearest[0].lacks}")
    text = "; ".join(parts) or f"none of {found.considered} fits"
    return " ".join(text.split())[:_LONGEST_WHY]
