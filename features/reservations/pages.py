"""The page about reservations, which operators create and delete."""

import logging
from dataclasses import dataclass, field
from functools import partial

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from berth.kit import operations_refused
from bus.errors import OperationRefused
from bus.resources import FindProviders
from control_room.kit import (
    AddedPages,
    BuildRecords,
    InvalidForm,
    PageContext,
    PageForm,
    PageGroup,
    PagePart,
    PageRefused,
    Renderer,
    address,
    is_project,
    live,
    live_data,
    parameter,
    post,
    query,
    soon,
    unknown_operation,
    user_of,
    uuid_in,
)
from features.reservations.edits import edit_reservation
from features.reservations.listing import (
    FIELDS,
    ReservationsListed,
    parse_reservation,
    reservations_at,
    reservations_listed,
    roots_of,
)
from features.reservations.messages import RESERVATIONS, EndReservation, FindReservations, every_reservation
from features.reservations.new_reservations import (
    NewReservation,
    create_reservation,
    filled_text,
    new_reservation,
)

log = logging.getLogger(__name__)

SECONDS = 2.0  # between two updates; builds that end cause one immediately
PAGE_SIZE = 50  # reservations
DONE = ("created", "deleted")


@dataclass(frozen=True)
class ReservationsQuery:
    """The parameters in the URL of the page of reservations: project (empty: all), how many to skip."""

    project: str = ""
    skip: int = 0

    def address(self, path: str = "/reservations", skip: int | None = None) -> str:
        skip = self.skip if skip is None else skip
        return address(path, {"project": self.project, "skip": skip})


@dataclass(frozen=True)
class ReservationsData:
    listed: ReservationsListed
    parts: dict[str, str] = field(default_factory=dict)  # rendered, by form token; "": for readers


def make(context: PageContext, renderer: Renderer) -> AddedPages:
    pages = ReservationPages(context, renderer)

    async def of_build(request: Request, records: BuildRecords) -> str:
        """Name the reservations from which a build draws."""
        find = FindReservations(drawn_by=records.id, ids=(records.id,), slots=False)
        reply = await query("placement", context.queries.asker(RESERVATIONS), find)
        drawn = reply.answer.reservations if reply.answer else ()
        return renderer.part("build_reservations.html", drawn=drawn, problem=reply.problem)

    return AddedPages(
        routes=[*live("/reservations", pages), post("/reservations", pages.edit)],
        sections={"build": of_build},
    )


class ReservationPages(PageGroup):
    def __init__(self, context: PageContext, renderer: Renderer) -> None:
        super().__init__(context, renderer)
        self._data, self._updates = live_data(context, self._read, context.events.changes, SECONDS)

    async def page(self, request: Request) -> Response:
        done = request.query_params.get("done", "")
        form = PageForm({"name": parameter(request, "name")})
        return await self._page(request, _wanted(request), form, done if done in DONE else "")

    async def events(self, request: Request) -> Response:
        wanted = _wanted(request)

        async def part() -> str:
            return self._part(request, wanted, await self._data.latest(wanted))

        return self._updates.stream(request, part)

    async def edit(self, request: Request) -> Response:
        fields = await self._renderer.form(request)
        act = fields.get("act", "")
        texts = {name: fields.get(name, "").strip() for name in FIELDS}
        try:
            if act == "create":
                made = await self._create(texts["name"], texts["project"], parse_reservation(texts))
            elif act == "delete":
                if not (id_ := uuid_in(fields.get("reservation", ""))):
                    raise OperationRefused("That is not the id of a reservation.")
                texts["name"], made = await self._delete(id_), ""
            else:
                raise unknown_operation(act, "reservations")
        except (OperationRefused, InvalidForm) as refused:
            form = PageForm(texts, str(refused))
            return await self._page(request, ReservationsQuery(), form, status=409)
        finally:
            self._data.forget()
        log.info("%s: %s reservation %s: %s", user_of(request), act, texts["name"], made or "done")
        query_ = {"done": f"{act}d", "name": texts["name"], "made": made}
        return RedirectResponse(address("/reservations", query_), status_code=303)

    async def _create(self, name: str, project: str, form: NewReservation) -> str:
        """Create a reservation and claim its slots; return a sentence with the number of slots that have a
        host.
        """
        bus, now = self._context.queries.bus, self._context.clock.now()
        with operations_refused():
            reservation = new_reservation(name, project, form, now)
            filled = await create_reservation(bus, reservation, now)
        return filled_text(reservation, filled, now)

    async def _delete(self, id_: str) -> str:
        """End a reservation and delete its record; return its name."""
        with operations_refused():
            end = EndReservation(reservation=id_, forget=True)
            edited = await edit_reservation(self._context.queries.bus, end)
        return edited.reservation.name

    async def _page(
        self, request: Request, wanted: ReservationsQuery, form: PageForm, done: str = "", status: int = 200
    ) -> Response:
        found = await soon(request, self._data.get(wanted))
        return self._renderer.page(
            request,
            "reservations.html",
            status=status,
            part=self._part(request, wanted, found),
            live=wanted.address("/reservations/events"),
            wanted=wanted,
            form=form,
            done=done,
            made=parameter(request, "made"),
        )

    def _part(self, request: Request, wanted: ReservationsQuery, data: ReservationsData | None) -> str:
        return self._renderer.part_of_visitor(
            request,
            data.parts if data else {},
            self._data.interval,
            "reservations_part.html",
            wanted=wanted,
            found=data.listed if data else None,
            now=self._context.clock.now(),
            page_size=PAGE_SIZE,
        )

    async def _read(self, wanted: ReservationsQuery) -> ReservationsData:
        ask = self._context.queries
        find = FindReservations(project=wanted.project, slots=False)
        every = await query("placement", partial(every_reservation, ask.asker(RESERVATIONS)), find)
        ids = tuple(each.id for each in reservations_at(every, wanted.skip, PAGE_SIZE))
        found, names = every, dict[str, str]()
        if ids:
            found = await query("placement", ask.asker(RESERVATIONS), FindReservations(ids=ids))
            if roots := roots_of(found):
                parts = FindProviders(ids=roots, parts=("owner",))
                hosts = (await query("placement", ask.providers, parts)).answer
                names = {each.id: each.host or each.name for each in hosts.providers} if hosts else {}
        now, last = self._context.clock.now(), wanted.skip + PAGE_SIZE
        return ReservationsData(reservations_listed(every, found, ids, names, now, last))


def _wanted(request: Request) -> ReservationsQuery:
    project, skip = parameter(request, "project"), request.query_params.get("skip", "")
    if project and not is_project(project):
        raise PageRefused(400, "That is not an id", "It is not the id of a project.")
    return ReservationsQuery(project, int(skip[:6]) if skip.isascii() and skip.isdecimal() else 0)


PART = PagePart(make)
