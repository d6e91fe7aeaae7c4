"""The page of the audit trail, with filters and an export as JSON lines."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec
from msgspec import structs
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from bus.acts import is_undoable
from bus.audit_trail import MOST_RECORDS, FindActs
from control_room.kit import frame, page_requests, words
from control_room.kit.queries import query

FILTERS = ("operator", "act", "target", "project", "outcome", "request")
MOST_EXPORTED = 100_000


class AuditPages(frame.PageGroup):
    """Shows the records of the audit trail, with filters and export."""

    async def page(self, request: Request) -> Response:
        filters = _filters(request)
        question = FindActs(**filters, before=_page(request))
        found = await query("a scheduler", self._context.queries.acts, question)
        last = found.answer.last if found.answer else ""
        return self._renderer.page(
            request,
            "audit.html",
            found=found,
            filters=filters,
            is_undoable=is_undoable,
            export=words.address("/audit.json", filters),
            older=words.address("/audit", {**filters, "before": last}) if last else "",
        )

    async def export(self, request: Request) -> Response:
        """Return the audit records that match the URL's filters, the latest first, one a line; at most
        100,000.
        """
        question = FindActs(**_filters(request), limit=MOST_RECORDS)
        first = await self._context.queries.acts(question)

        async def lines() -> AsyncIterator[bytes]:
            found, count = first, 0
            while True:
                for record in found.records:
                    yield msgspec.json.encode(record) + b"\n"
                count += len(found.records)
                if not found.last or count >= MOST_EXPORTED:
                    return
                found = await self._context.queries.acts(structs.replace(question, before=found.last))

        names = {"content-disposition": 'attachment; filename="berth-audit.jsonl"'}
        return StreamingResponse(lines(), media_type="application/jsonl", headers=names)


def _filters(request: Request) -> dict[str, Any]:
    return {name: page_requests.parameter(request, name) for name in FILTERS}


def _page(request: Request) -> str:
    """Return the URL's parameter `before`: the page shows audit records before this one. "" (first page) if
    malformed.
    """
    try:
        return msgspec.convert({"before": page_requests.parameter(request, "before")}, FindActs).before
    except msgspec.ValidationError:
        return ""
