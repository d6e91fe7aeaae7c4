"""Pages about projects: usage, limits and instances; operators set and unset limits."""

import asyncio
import logging
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from berth.kit import operations_refused
from bus import topics
from bus.errors import OperationRefused
from bus.queries import FindWaiting
from bus.replication import PlacementChanged
from control_room.kit import (
    AddedPages,
    Changes,
    FoundPage,
    PageContext,
    PageGroup,
    PagePart,
    PageRefused,
    PlacementWatch,
    Renderer,
    address,
    is_project,
    listed,
    live,
    live_data,
    parameter,
    post,
    query,
    soon,
    unknown_operation,
    user_of,
)
from features.quotas.edits import parsed_limits, project_to_edit, quotas_of, set_quota, unset_quota
from features.quotas.messages import DEFAULT, NAME_OF_DEFAULT, QUOTAS, FindQuotas, project_named
from features.quotas.projects import projects_listed, projects_of

log = logging.getLogger(__name__)

SECONDS = 2.0  # between two updates without changes of quotas: usage also grows
PAGE_SIZE = 50  # projects


@dataclass(frozen=True)
class ProjectsQuery:
    """The parameters in the URL of the page of projects: project (empty: all), and `after`: the project after
    which to begin.
    """

    project: str = ""
    after: str = ""

    def address(self, path: str = "/projects", after: str | None = None) -> str:
        """Return the address of the page with this filter, from another project on."""
        after = self.after if after is None else after
        return address(path, {"project": self.project, "after": after})


@dataclass(frozen=True)
class QuotaForm:
    """The fields of the form that sets and unsets limits, as they were entered."""

    project: str = ""
    limits: str = ""
    resources: str = ""
    act: str = ""
    problem: str = ""  # why the operation was refused


@dataclass(frozen=True)
class ProjectsData:
    """The rendered table of projects."""

    part: str  # rendered
    from_keystone: bool = False


def make(context: PageContext, renderer: Renderer) -> AddedPages:
    pages = ProjectPages(context, renderer)
    return AddedPages(routes=[*live("/projects", pages), post("/projects", pages.edit)], find=pages.find)


class ProjectPages(PageGroup):
    """Shows projects with usage and quotas; operators set quotas."""

    def __init__(self, context: PageContext, renderer: Renderer) -> None:
        super().__init__(context, renderer)
        self._changes = Changes(context.events.of(topics.SCHEDULER_ALIVE))
        self._data, self._updates = live_data(context, self._read, self._changes, SECONDS)
        self._watch = PlacementWatch(context.operations.placement_changes, context.tasks, self._on_change)

    async def page(self, request: Request) -> Response:
        wanted, done = _wanted(request), request.query_params.get("done", "")
        given = parameter(request, "project")
        form = QuotaForm(project=given if wanted.project or given == NAME_OF_DEFAULT else "")
        return await self._page(request, wanted, form, done if form.project else "")

    async def events(self, request: Request) -> Response:
        wanted = _wanted(request)

        async def part() -> str:
            return (await self._data.latest(wanted)).part

        return self._updates.stream(request, part, self._watch.following())

    async def edit(self, request: Request) -> Response:
        fields = await self._renderer.form(request)
        act = fields.get("act", "")
        if act not in ("set", "unset"):
            raise unknown_operation(act, "quotas")
        project = fields.get("project", "").strip()
        limits, resources = fields.get("limits", ""), fields.get("resources", "")
        try:
            if not is_project(project):
                raise OperationRefused("Enter the id of a project, or default for the default limits.")
            if act == "set":
                state = await self._set(project, limits)
            else:
                state = await self._unset(project, resources)
        except OperationRefused as refused:
            wanted = ProjectsQuery(project if is_project(project) and project != NAME_OF_DEFAULT else "")
            form = QuotaForm(project, limits, resources, act, str(refused))
            return await self._page(request, wanted, form, status=409)
        finally:
            self._data.forget()
        log.info("%s: %s limits of project %s: %s", user_of(request), act, project, state)
        done = address("/projects", {"project": project, "done": act})
        return RedirectResponse(done, status_code=303)

    async def find(self, text: str) -> list[FoundPage]:
        """Return the page of the project with this id, if it has limits or uses anything."""
        if not is_project(text):
            return []
        find = FindQuotas(project=text, used=True, limit=1)
        found = await query("placement", self._context.queries.asker(QUOTAS), find)
        known = [quota for quota in found.answer.quotas if quota.limits or quota.used] if found.answer else []
        return [FoundPage("project", text, address("/projects", {"project": text})) for _ in known]

    async def _page(
        self, request: Request, wanted: ProjectsQuery, form: QuotaForm, done: str = "", status: int = 200
    ) -> Response:
        data = await soon(request, self._data.get(wanted))
        return self._renderer.page(
            request,
            "projects.html",
            status=status,
            part=data.part if data else self._renderer.part("projects_part.html", wanted=wanted, found=None),
            from_keystone=data is not None and data.from_keystone,
            live=wanted.address("/projects/events"),
            wanted=wanted,
            form=form,
            done=done if done in ("set", "unset") else "",
        )

    async def _set(self, project: str, limits: str) -> str:
        """Set limits of a project from a text such as `VCPU=40 instances=10`; return them as text."""
        with operations_refused():
            parsed = parsed_limits(limits.replace(",", " ").split())
            if not parsed:
                raise OperationRefused("No limit was entered; limits are such as VCPU=40 instances=10.")
            await set_quota(self._context.queries.bus, project_to_edit(project), parsed)
        return limits

    async def _unset(self, project: str, resources: str) -> str:
        """Delete a project's limits of the resources in a text such as `VCPU instances` ("": all); return
        what was deleted, as text.
        """
        with operations_refused():
            id_, names = project_to_edit(project), resources.replace(",", " ").split()
            [before] = await quotas_of(self._context.queries.bus, id_)
            if missing := [name for name in names if name not in before.limits]:
                raise OperationRefused(
                    f"{project} has no limit of its own of {listed(missing)};"
                    f" it has limits of: {listed(sorted(before.limits), 20) or 'nothing'}"
                )
            await unset_quota(self._context.queries.bus, id_, names)
        return " ".join(names) or "all"

    async def _read(self, wanted: ProjectsQuery) -> ProjectsData:
        ask = self._context.queries
        quotas = ask.asker(QUOTAS)
        find = FindQuotas(project=wanted.project or None, used=True, after=wanted.after, limit=PAGE_SIZE)
        found, default = await asyncio.gather(
            query("placement", quotas, find), query("placement", quotas, FindQuotas(project=DEFAULT))
        )
        count = FindWaiting(projects=projects_of(found), limit=1)
        listed = projects_listed(found, default, await query("the scheduler", ask.waiting, count))
        with self._data.interval.rendering():
            part = self._renderer.part("projects_part.html", wanted=wanted, found=listed)
        return ProjectsData(part, listed.from_keystone)

    def _on_change(self, change: PlacementChanged) -> None:
        if change.wakes:
            self._changes.notify()


def _wanted(request: Request) -> ProjectsQuery:
    project, after = parameter(request, "project"), parameter(request, "after")
    if (project and not is_project(project)) or (after and not is_project(after)):
        raise PageRefused(400, "That is not an id", "It is not the id of a project.")
    return ProjectsQuery(project_named(project), after)


PART = PagePart(make)
