"""Requests made from the OpenAPI documents: both HTTP servers answer as documented."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any

import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.applications import Starlette

from berth.placement_http import placement_document
from berth.rest.openapi import rest_document
from bus.http import listen, serve
from placement_worker.http import format_refusal
from placement_worker.http.access import Identity
from tests.support.http_placement import an_api
from tests.support.rest_region import a_region


def invalid_requests_are_refused(context: Any, response: Any, case: Any) -> bool | None:
    if response.status_code == 413:  # the invalid request was also too large
        return None
    return negative_data_rejection(context, response, case)


EACH = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    invalid_requests_are_refused,
]


@asynccontextmanager
async def rest() -> AsyncIterator[Starlette]:
    async with a_region() as region:
        region.identities["admin"] = Identity("ann", "p1", frozenset(("admin",)))
        yield region.app


@asynccontextmanager
async def placement() -> AsyncIterator[Starlette]:
    async with an_api("sqlite+aiosqlite://") as api:
        api.app.state.closing.set()  # so that a stream of changes ends at once
        yield api.app


@contextmanager
def in_a_thread(made: Callable[[], AbstractAsyncContextManager[Starlette]]) -> Iterator[str]:
    """Serve an app in the event loop of another thread; yield its URL."""
    url: Future[tuple[str, asyncio.AbstractEventLoop, asyncio.Task[Any]]] = Future()

    async def run() -> None:
        listener = listen("127.0.0.1:0")
        async with made() as app:
            port = listener.getsockname()[1]
            serving = asyncio.create_task(serve(app, listener, format_refusal=format_refusal))
            url.set_result((f"http://127.0.0.1:{port}", asyncio.get_running_loop(), serving))
            await asyncio.wait([serving])

    thread = threading.Thread(target=asyncio.run, args=(run(),), daemon=True)
    thread.start()
    address, loop, serving = url.result(60)
    yield address
    loop.call_soon_threadsafe(serving.cancel)
    thread.join(60)


@pytest.fixture(scope="module")
def rest_url() -> Iterator[str]:
    with in_a_thread(rest) as url:
        yield url


@pytest.fixture(scope="module")
def placement_url() -> Iterator[str]:
    with in_a_thread(placement) as url:
        yield url


def schema_of(made: dict[str, Any]) -> Any:
    return schemathesis.openapi.from_dict(msgspec.json.decode(msgspec.json.encode(made)))


REST, PLACEMENT = (schema_of(rest_document()), schema_of(placement_document()))
few = settings(
    max_examples=6,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@REST.parametrize()  # type: ignore[untyped-decorator]
@few
def test_the_rest_api_answers_as_its_document_says(case: Any, rest_url: str) -> None:
    case.call_and_validate(base_url=rest_url, headers={"x-auth-token": "admin"}, checks=EACH)


@PLACEMENT.parametrize()  # type: ignore[untyped-decorator]
@few
def test_the_placement_api_answers_as_its_document_says(case: Any, placement_url: str) -> None:
    case.call_and_validate(base_url=placement_url, headers={"x-auth-token": "admin"}, checks=EACH)
