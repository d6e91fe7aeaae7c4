"""The page about failover headroom, which operators set."""

import logging
from collections.abc import Sequence
from functools import partial

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from berth.kit import OPERATION_ERRORS, operations_refused
from bus.claims import ConsumerClaim
from bus.errors import OperationRefused
from control_room.kit import (
    AddedPages,
    PageContext,
    PageForm,
    PageGroup,
    PagePart,
    Renderer,
    address,
    live,
    live_data,
    post,
    query,
    soon,
    unknown_operation,
    user_of,
)
from features.headroom.after_claims import headroom_after
from features.headroom.editing import HeadroomWouldShrink, set_headroom, unset_headroom
from features.headroom.messages import HEADROOM, FindHeadroom

log = logging.getLogger(__name__)

SECONDS = 2.0  # between two updates; builds that end cause one immediately


def make(context: PageContext, renderer: Renderer) -> AddedPages:
    pages = HeadroomPages(context, renderer)

    return AddedPages(
        routes=[*live("/headroom", pages), post("/headroom", pages.edit)],
        sections={"claims": partial(after_claims, context, renderer)},
    )


async def after_claims(
    context: PageContext, renderer: Renderer, request: Request, claims: Sequence[ConsumerClaim]
) -> str:
    """Show what claims that a page shows would do to the headroom."""
    if not claims:
        return ""
    reply = await query("placement", context.queries.asker(HEADROOM), FindHeadroom(claims=tuple(claims)))
    after = headroom_after(reply.answer) if reply.answer else ()
    return renderer.part("headroom_after.html", problem=reply.problem, after=after)


class HeadroomPages(PageGroup):
    """Shows headrooms; operators set and remove them."""

    def __init__(self, context: PageContext, renderer: Renderer) -> None:
        super().__init__(context, renderer)
        self._data, self._updates = live_data(context, self._read, context.events.changes, SECONDS)

    async def page(self, request: Request) -> Response:
        done = request.query_params.get("done", "")
        return await self._page(request, PageForm(), done if done in ("set", "unset") else "")

    async def events(self, request: Request) -> Response:
        return self._updates.stream(request, lambda: self._data.latest(None))

    async def edit(self, request: Request) -> Response:
        fields = await self._renderer.form(request)
        act, levels = fields.get("act", ""), fields.get("levels", "")
        try:
            if act == "set":
                await self._set(levels.replace(",", " ").split(), replace=fields.get("sure") == "yes")
            elif act == "unset":
                with operations_refused():
                    await unset_headroom(self._context.queries.bus)
            else:
                raise unknown_operation(act, "headroom")
        except HeadroomWouldShrink as loss:
            return self._renderer.page(
                request, "headroom_sure.html", status=409, levels=levels, loss=str(loss)
            )
        except OperationRefused as refused:
            return await self._page(request, PageForm({"levels": levels}, str(refused)), status=409)
        finally:
            self._data.forget()
        log.info("%s: %s headroom %s", user_of(request), act, levels)
        return RedirectResponse(address("/headroom", {"done": act}), status_code=303)

    async def _set(self, levels: list[str], replace: bool) -> None:
        try:
            made = await set_headroom(self._context.queries.bus, levels, replace)
        except HeadroomWouldShrink:
            raise
        except OPERATION_ERRORS as problem:
            raise OperationRefused(str(problem)) from None
        if not made.changed:
            raise OperationRefused(f"Headroom is kept for any one {' or '.join(levels)} already.")

    async def _page(self, request: Request, form: PageForm, done: str = "", status: int = 200) -> Response:
        part = await soon(request, self._data.get(None))
        part = part or self._renderer.part("headroom_part.html", reply=None, now=0.0)
        return self._renderer.page(request, "headroom.html", status=status, part=part, form=form, done=done)

    async def _read(self, _: None) -> str:
        reply = await query("placement", self._context.queries.asker(HEADROOM), FindHeadroom())
        with self._data.interval.rendering():
            return self._renderer.part("headroom_part.html", reply=reply, now=self._context.clock.now())


PART = PagePart(make)
