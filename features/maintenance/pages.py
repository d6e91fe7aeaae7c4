"""The page about maintenance windows and automatic evacuations, with the form to edit windows."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from berth.kit import operations_refused
from bus.clock import time_text
from bus.delivery.runner import Bus
from bus.errors import OperationRefused
from control_room.kit import (
    AddedPages,
    InvalidForm,
    PageContext,
    PageGroup,
    PagePart,
    PageUpdates,
    Renderer,
    address,
    live,
    parameter,
    post,
    query,
    soon,
    unknown_operation,
    user_of,
    uuid_in,
)
from features.maintenance.core.window_form import FIELDS, parse_window
from features.maintenance.messages import (
    MAINTENANCE,
    FindMaintenance,
    MaintenanceWindow,
    WindowPlan,
    every_maintenance,
)
from features.maintenance.operations import cancel_window, plan_sentences, plan_window, store_window

log = logging.getLogger(__name__)

MAINTENANCE_SECONDS = 5.0  # between two reads of the maintenance windows
DONE = ("add", "change", "cancel")
PLAN = "plan"  # the form asks what would become of the instances; nothing is stored


@dataclass(frozen=True)
class EditedWindow:
    """The texts of the form of a maintenance window, as entered or stored, and why the operation was
    refused.
    """

    id: str = ""  # of the window to change; empty: a new window
    texts: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""
    planned: WindowPlan | None = None  # what would become of a window with these texts
    sentences: Sequence[tuple[str, bool]] = ()  # about its drain; each with whether it is good

    @property
    def host_names(self) -> Mapping[str, str]:
        """The names of the hosts of the planned window, by root."""
        return {host.root: host.host for host in self.planned.hosts} if self.planned else {}


def make(context: PageContext, renderer: Renderer) -> AddedPages:
    pages = MaintenancePages(context, renderer)
    return AddedPages(routes=[*live("/maintenance", pages), post("/maintenance", pages.edit)])


class MaintenancePages(PageGroup):
    """Shows windows and evacuations; operators edit them."""

    def __init__(self, context: PageContext, renderer: Renderer) -> None:
        super().__init__(context, renderer)
        self._updates = PageUpdates(MAINTENANCE_SECONDS)

    async def events(self, request: Request) -> Response:
        """Return an event stream with the maintenance windows and automatic evacuations."""
        return self._updates.stream(request, lambda: self._part(request))

    async def page(self, request: Request, edited: EditedWindow | None = None, status: int = 200) -> Response:
        """Return the page; `edited` is a refused form, to show it again."""
        if edited is None:
            id_ = uuid_in(parameter(request, "window"))
            edited = await soon(request, self._stored(id_)) if id_ else None
        done = request.query_params.get("done", "")
        return self._renderer.page(
            request,
            "maintenance.html",
            status=status,
            maintenance=await soon(request, self._part(request)) or "",
            window=edited or EditedWindow(),
            done=parameter(request, "made") if done in DONE else "",
        )

    async def edit(self, request: Request) -> Response:
        """Add, change or cancel a maintenance window; return a redirect or, if the operation is refused, the
        page with the form and the reason. For a plan of a window return the page with the form and the plan.
        """
        fields = await self._renderer.form(request)
        act, bus = fields.get("act", ""), self._context.queries.bus
        texts = {name: fields.get(name, "").strip() for name in FIELDS}
        id_ = uuid_in(fields.get("window", "")) or ""
        if act not in (*DONE, PLAN):
            raise unknown_operation(act, "maintenance windows")
        try:
            if act == PLAN:
                return await self.page(request, await _planned(bus, texts))
            if act != "add" and not id_:
                raise OperationRefused("That is not the id of a maintenance window.")
            if act == "cancel":
                made = await cancel_window(bus, id_)
            else:
                made = await store_window(bus, id_ if act == "change" else "", parse_window(texts))
        except (OperationRefused, InvalidForm) as refused:
            edited = EditedWindow(id_ if act == "change" else "", texts, str(refused))
            return await self.page(request, edited, 409)
        log.info("%s: %s maintenance %s", user_of(request), act, made)
        return RedirectResponse(address("/maintenance", {"done": act, "made": made}), status_code=303)

    async def _part(self, request: Request) -> str:
        find = partial(every_maintenance, self._context.queries.asker(MAINTENANCE))
        found = await query("a scheduler", find, FindMaintenance())
        visitor = self._renderer.of_visitor(request)
        return self._renderer.part("maintenance_part.html", found=found, **visitor)

    async def _stored(self, id_: str) -> EditedWindow | None:
        """Return the form filled in with a stored maintenance window; None if unknown or ended."""
        found = await query(
            "a scheduler", self._context.queries.asker(MAINTENANCE), FindMaintenance(subject=id_)
        )
        for state in found.answer.windows if found.answer else ():
            if not state.ended and not state.cancelled:
                return EditedWindow(id_, _window_texts(state.window))
        return None


async def _planned(bus: Bus, texts: Mapping[str, str]) -> EditedWindow:
    """Return the form with these texts, and the plan of its window."""
    with operations_refused():
        window, plan = await plan_window(bus, parse_window(texts))
    sentences = tuple(plan_sentences(window, plan, bus.clock.now()))
    return EditedWindow("", texts, planned=plan, sentences=sentences)


def _window_texts(window: MaintenanceWindow) -> dict[str, str]:
    """Return the texts of the form for a stored window, without its hosts, which cannot be changed."""
    return {
        "begin": time_text(window.begins),
        "end": time_text(window.ends),
        "budget": str(window.budget),
        "per": window.level,
        "most": str(window.moves),
        "cold": "1" * window.cold,
        "keep_closed": "1" * window.keep_closed,
        "reason": window.reason,
    }


PART = PagePart(make)
