"""The page for what-if questions: would a request fit now, and where? Nothing is claimed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from berth.kit import (
    boot_request,
    checked,
    names_of,
    operations_refused,
    options_named,
    recorded_request,
    resolved_request,
    sense_of,
)
from bus.delivery.runner import Bus
from bus.errors import OperationRefused
from bus.messages import BuildRequested
from control_room.kit import (
    AddedPages,
    BuildRecords,
    DecisionShown,
    InvalidForm,
    PageContext,
    PageGroup,
    PagePart,
    Renderer,
    Scores,
    decision_shown,
    get,
    query,
)
from features.what_if.core.request_form import FIELDS, RequestForm
from features.what_if.messages import WHAT_IF, WhatIf, WhatIfAnswered


@dataclass(frozen=True)
class AskedForm:
    """A what-if question with its answer, for sections of other features."""

    request: BuildRequested
    answer: WhatIfAnswered


def make(context: PageContext, renderer: Renderer) -> AddedPages:
    form = RequestForm(context.request_fields)

    async def of_build(request: Request, records: BuildRecords) -> str:
        """Show links to what-if questions about a build's request, and the answer if the URL asks for it."""
        requested, is_asked = _requested(records), request.query_params.get("then") == "now"
        reply = None
        if is_asked and requested is not None:
            what_if = WhatIf(request=requested, room=True)
            reply = await query("the scheduler", context.queries.asker(WHAT_IF), what_if)
        answer = reply.answer if reply else None
        return renderer.part(
            "build_what_if.html",
            is_asked=is_asked,
            today=reply,
            decision=shown_answer(answer, context.operations.scores) if answer else None,
            what_if=form.address_of(requested) if requested is not None else "",
        )

    return AddedPages(
        routes=[get("/what-if", WhatIfPages(context, renderer).page)], sections={"build": of_build}
    )


def _requested(records: BuildRecords) -> BuildRequested | None:
    """Return the recorded request of a build, or None if no record has the complete request."""
    if records.decided.parts.subject:  # the decision is not about a boot
        return None
    if records.decided.request is None and records.builds:
        return recorded_request(records.builds[0])
    return records.decided.request


class WhatIfPages(PageGroup):
    def __init__(self, context: PageContext, renderer: Renderer) -> None:
        super().__init__(context, renderer)
        self._form = RequestForm(context.request_fields)

    async def page(self, request: Request) -> Response:
        texts, answer = self._form.texts(request.query_params), None
        notes: Sequence[str] = ()
        problems: Sequence[str] = ()
        of_claims: Sequence[str] = ()
        sections: Sequence[str] = ()
        try:
            options = self._form.options(texts)
            if options is not None:
                build, notes = await requested(self._context.queries.bus, options)
                what_if = WhatIf(request=build, room=True, replacing=True, claims=True)
                reply = await query("the scheduler", self._context.queries.asker(WHAT_IF), what_if)
                answer = reply.answer
                if answer is None:
                    problems = (f"The scheduler does not answer: {reply.problem}.",)
                else:
                    of_claims = await self._renderer.sections("claims", request, answer.claims)
                    sections = await self._renderer.sections("what_if", request, AskedForm(build, answer))
        except InvalidForm as invalid:
            problems = invalid.args
        except OperationRefused as refused:
            problems = (str(refused),)
        more_fields = self._form.more_fields
        return self._renderer.page(
            request,
            "what_if.html",
            fields=FIELDS,
            more_fields=more_fields,
            texts=texts,
            more=any(texts[field.name] for field in more_fields),
            problems=problems,
            notes=notes,
            answer=answer,
            decision=shown_answer(answer, self._context.operations.scores) if answer else None,
            now=self._context.clock.now(),
            of_claims=of_claims,
            sections=sections,
        )


async def requested(bus: Bus, entered: dict[str, Any]) -> tuple[BuildRequested, tuple[str, ...]]:
    """Return the request with these options of `berth boot`, and notes about options without effect."""
    with operations_refused():
        options = options_named(**entered)
        request = boot_request(options)
        notes = sense_of(checked(request))
        return checked(await resolved_request(bus, request, names_of(options))), notes


def shown_answer(answer: WhatIfAnswered, scores: Scores) -> DecisionShown:
    return decision_shown(answer.decision, scores, answer.placed[0].root if answer.placed else "")


PART = PagePart(make)
