"""The control room and the table of acts: every form, by every role, also limited to cells and projects."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from msgspec.structs import replace
from starlette.routing import Route

from berth.settings import Settings
from bus import topics
from bus.acts import BY_NAME, Target, allowed
from bus.audit_trail import ActRecord, Operator
from bus.host_health import DISABLED, DRAIN, FORCED_DOWN
from bus.messages import BuildCancelled, BuildCancelRequested
from bus.protocol import decode
from bus.queries import InstancesFound
from bus.resources import FindProviders, ProvidersFound
from bus.topics import Query
from bus.vocabulary import Message
from bus.worker import Worker, answers, on
from control_room.pages.bus import OPERATIONS
from control_room.pages.hosts import MARKS
from control_room.pages.middleware import OPEN
from placement_worker.http.access import StoredToken, StoredTokens
from tests.support.golden_messages import GOLDEN
from tests.support.ids import uid
from tests.support.open_berth import pages_of_features
from tests.support.visited_room import VisitedRoom, a_visited_room

R = TypeVar("R", bound=Message)

OPEN_HOST, CLOSED_HOST = uid(1, "a"), uid(2, "a")  # the second one is drained and forced down
CLOSING = ("disable", "force-down")

Form = tuple[str, str, dict[str, str]]  # URL, act of the table, fields
# URL pattern → the forms that it accepts
FORMS: dict[str, list[Form]] = {
    "/hosts/{host}": [
        (f"/hosts/{host}", "mark host", {"act": act, "cause": "drain"})
        for act in MARKS
        for host in [OPEN_HOST if act in CLOSING else CLOSED_HOST]
    ],
    "/bus/dead": [
        ("/bus/dead", "dead letters", {"act": act, "sure": "yes", "letter:x": "1"}) for act in OPERATIONS
    ],
}
VISITORS = {
    "a user without a role": Operator(name="a"),
    "a reader": Operator(name="b", role="reader"),
    "an operator": Operator(name="c", role="operator"),
    "an admin": Operator(name="d", role="admin"),
    "a reader of the cell": Operator(name="e", role="reader", cells=("c1",)),
    "an operator of the cell": Operator(name="f", role="operator", cells=("c1",)),
    "an operator of another cell": Operator(name="g", role="operator", cells=("c2",)),
    "an operator of a project": Operator(name="h", role="operator", projects=("p1",)),
    "an admin of the cell": Operator(name="i", role="admin", cells=("c1",)),
}


def golden(query: Query[Any, R]) -> R:
    """Return an answer to a query, from the golden bytes."""
    return decode(query.answer, GOLDEN[query.answer.__name__])


def last_page(answer: R) -> R:
    return replace(answer, more="") if isinstance(getattr(answer, "more", None), str) else answer


def always(answer: R) -> Callable[[Message], Awaitable[R]]:
    async def answered(_: Message) -> R:
        return answer

    return answered


async def hosts(question: FindProviders) -> ProvidersFound:
    [host] = decode(ProvidersFound, GOLDEN["ProvidersFound"]).providers
    id_, traits = (
        (CLOSED_HOST, (DISABLED, DRAIN, FORCED_DOWN)) if CLOSED_HOST in question.ids else (OPEN_HOST, ())
    )
    return ProvidersFound(providers=(replace(host, id=id_, root=id_, cell="c1", traits=traits),))


async def cancelled(order: BuildCancelRequested) -> BuildCancelled:
    return BuildCancelled(build=order.build, waited=True, reply_to=order.reply_to)


for _pages in pages_of_features():
    for _url, _forms in getattr(_pages, "FORMS", {}).items():
        FORMS.setdefault(_url, []).extend(_forms)
# URLs of forms whose targets are in no single cell
IN_NO_CELL = {url for pages in pages_of_features() for url in getattr(pages, "IN_NO_CELL", ())}
CELLS: list[Worker] = [worker for pages in pages_of_features() for worker in getattr(pages, "CELLS", ())]
ANSWERED = (
    topics.EDIT, topics.EDIT_NAME,
    *(query for pages in pages_of_features() for query in getattr(pages, "ANSWERED", ())),
)  # fmt: skip
# all workers of a region, with the same answers at all times
REGION = Worker(
    "region",
    consumes=[on(topics.BUILD_CANCEL, cancelled, emits=[topics.BUILD_CANCELLED])],
    answers=[
        *(answers(query, always(last_page(golden(query)))) for query in ANSWERED),
        answers(topics.PROVIDERS, hosts),
        answers(topics.FIND_INSTANCES, always(InstancesFound(instances=())), cell="c1"),
    ],
)


class Records(list[ActRecord]):
    async def take(self, records: Sequence[ActRecord]) -> None:
        self += records


@pytest.fixture
async def records() -> Records:
    return Records()


@pytest.fixture
async def room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, records: Records
) -> AsyncIterator[VisitedRoom]:
    file = tmp_path / "tokens.json"
    tokens = [
        StoredToken(
            token=who.name, user=who.name, project="p", roles=(who.role,) if who.role else (),
            cells=who.cells, projects=who.projects,
        )
        for who in VISITORS.values()
    ]  # fmt: skip
    file.write_bytes(msgspec.json.encode(StoredTokens(tuple(tokens))))
    settings = Settings().having(cells=("c1",), placement_auth="tokens", placement_tokens=str(file))
    answered = ("providers", *(row.query.name for worker in CELLS for row in worker.answers))
    async with a_visited_room(REGION, *CELLS, answered=answered, settings=settings) as visited:
        monkeypatch.setattr(visited.bus, "deliver", records.take)
        for module in (module for pages in pages_of_features() for module in getattr(pages, "PATIENCE", ())):
            monkeypatch.setattr(module, "PUBLISH_SECONDS", 0.0)
        yield visited


@pytest.mark.parametrize("visitor", VISITORS)
async def test_the_table_of_acts_decides_about_every_form(
    room: VisitedRoom, records: Records, visitor: str
) -> None:
    who = VISITORS[visitor]
    await room.sign_in(who.name)
    form_token = await room.form_token()
    wrong = []
    for url, act, fields in chain.from_iterable(FORMS.values()):
        records.clear()
        answer = await room.browser.post(url, data={"form_token": form_token, **fields})
        outcomes = [record.outcome for record in records if record.act in (act, "form")]
        target = Target(cell="" if url in IN_NO_CELL else "c1")
        # pages show the whole region, so they are closed for roles that are limited to projects
        may = not who.projects and not allowed(who, BY_NAME[act], target)
        if outcomes[:1] != (["started"] if may else ["denied"]):
            wrong.append((url, fields, outcomes, answer.status_code))
    assert not wrong


async def test_every_form_has_an_act(room: VisitedRoom) -> None:
    assert paths(room, "POST") == FORMS.keys()


@pytest.mark.parametrize("visitor", ["", "a user without a role", "an operator of a project"])
async def test_no_page_opens_without_a_role_in_the_whole_region(room: VisitedRoom, visitor: str) -> None:
    if visitor:
        await room.sign_in(VISITORS[visitor].name)
    for path in paths(room, "GET"):
        assert (await room.browser.get(path)).status_code == (403 if visitor else 401), path


def paths(room: VisitedRoom, method: str) -> set[str]:
    """Return the URL patterns that accept a method and are not open to everyone."""
    routes = [route for route in room.app.routes if isinstance(route, Route)]
    return {route.path for route in routes if method in (route.methods or (method,))} - {*OPEN}
