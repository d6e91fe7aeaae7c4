"""Render allocation candidates directly to bytes, or the reasons if there are no candidates."""

from collections.abc import Collection, Iterable

from bus.candidates import SenselessQuery
from bus.queries import FindCandidates
from bus.vocabulary import Resources
from placement_worker.core.row import Row
from placement_worker.core.search import Fit, SearchResult, search_steps
from placement_worker.http import queries
from placement_worker.http.api_call import LATEST_MINOR, ApiAnswer, ApiCall, encode, json_answer
from placement_worker.http.errors import bad_request, check_query
from placement_worker.http.schemas import Json

SINCE = 10  # minor version
_BETWEEN = '","'
_LONGEST_WHY = 300  # characters of a header


async def list_all(call: ApiCall) -> ApiAnswer:
    wanted, found = await _found(call, call.minor)
    headers = {}
    if found.cut and wanted.query.limit == queries.MOST_CANDIDATES:
        headers["berth-candidates-cut"] = "true"
    if not found.fits:
        headers["berth-why"] = why_none(found)
    requests, summaries = _requests(found.fits, call.minor), _summaries(call, found, wanted.classes)
    text = f'{{"allocation_requests":[{requests}],"provider_summaries":{{{summaries}}}}}'
    return ApiAnswer(body=text.encode("ascii"), updated=0.0, headers=headers)


async def explain(call: ApiCall) -> ApiAnswer:
    """Return how many hosts each requirement rejected, and the closest hosts."""
    minor = call.minor if call.minor >= SINCE else LATEST_MINOR
    _, found = await _found(call, minor)
    return json_answer(
        {
            "seen": found.seen,
            "considered": found.considered,
            "fitting": found.fitting,
            "why": "" if found.fits else why_none(found),
            "removals": found.removals,
            "nearest": found.nearest,
        }
    )


async def _found(call: ApiCall, minor: int) -> tuple[queries.Wanted[FindCandidates], SearchResult]:
    wanted = queries.candidates(call.query, minor)
    await call.placement.memory.fresh()
    await check_query(call.placement, wanted.classes, wanted.traits)
    try:
        return wanted, await call.placement.searches.run(search_steps, wanted.query)
    except SenselessQuery as wrong:
        raise bad_request(str(wrong)) from None


def _summaries(call: ApiCall, found: SearchResult, classes: Collection[str]) -> str:
    fits, snapshot = found.fits, found.snapshot
    rows: dict[str, Row] = {}
    if call.minor >= 29:
        for root in dict.fromkeys(row.root for fit in fits for row in fit.rows):
            rows.update((row.uuid, row) for row in snapshot.rows_of(root))
        return ",".join([row.told or _summary(call, row, classes) for row in rows.values()])
    nested = snapshot.index.children > 0
    for fit in fits:
        for row in fit.rows:
            tree = (row,) if nested else snapshot.rows_of(row.root) or (row,)
            rows.update((row.uuid, row) for row in tree)
    return ",".join(_summary(call, row, classes) for row in rows.values())


def _summary(call: ApiCall, row: Row, classes: Collection[str]) -> str:
    names = row.capacity if call.minor >= 27 else [name for name in row.capacity if name in classes]
    used, ids = row.used, call.placement.book.traits.ids
    resources = {name: {"capacity": row.capacity[name], "used": used.get(name, 0)} for name in names}
    rendered: Json = {"resources": resources}
    if call.minor >= 17:
        rendered["traits"] = sorted(row.traits, key=lambda name: ids.get(name, len(ids)))
    if call.minor >= 29:
        rendered |= {"parent_provider_uuid": row.parent, "root_provider_uuid": row.root}
    text = f'"{row.uuid}":{encode(rendered).decode()}'
    if call.minor >= 29:
        row.told = text
    return text


def _requests(fits: Iterable[Fit], minor: int) -> str:
    rendered: dict[int, str] = {}

    def amounts(resources: Resources) -> str:
        text = rendered.get(id(resources))
        if text is None:
            text = rendered[id(resources)] = encode(resources).decode()
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
    """Return a sentence that explains why no host fits."""
    if not found.considered:
        return "there are no providers"
    parts = []
    emptied = [removal for removal in found.removals if not removal.left]
    if emptied:
        parts.append(f"of {found.considered} none is left after: {emptied[0].constraint}")
    if found.nearest:
        parts.append(f"closest is {found.nearest[0].host}, which lacks {found.nearest[0].lacks}")
    text = "; ".join(parts) or f"none of {found.considered} fits"
    return " ".join(text.split())[:_LONGEST_WHY]
