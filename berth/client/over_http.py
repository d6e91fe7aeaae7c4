"""A client of the REST API. It repeats unanswered requests: a repeated request has no further effect."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx
import msgspec

from berth.rest.bodies import (
    Accepted,
    BatchAccepted,
    BatchRequested,
    BuildAccepted,
    BuildDetails,
    BuildsListed,
    Event,
    EventsListed,
    RequestState,
)
from bus import parts
from bus.clock import monotonic
from bus.messages import BuildRequested

R = TypeVar("R")
LONG_POLL = 60.0  # seconds of one request that waits
_AWAY = (502, 503, 504)  # statuses after which a request is repeated


class RestRefusal(Exception):
    """Error: the REST API refused a request; has the HTTP status and the reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"{status}: {reason}")
        self.status = status
        self.reason = reason


class RestClient:
    """A client of the REST API, for `async with`.

    If the API is unreachable, each request is repeated for `patience` seconds; then httpx's error is raised.
    """

    def __init__(self, url: str, token: str = "", *, patience: float = 30.0, **options: Any) -> None:
        """Create a client; `options` are of httpx.AsyncClient, such as `verify` for a private certificate."""
        headers = {**options.pop("headers", {}), **({"x-auth-token": token} if token else {})}
        timeout = httpx.Timeout(30.0, read=LONG_POLL + 30.0)
        options.setdefault("limits", httpx.Limits(max_connections=None))  # each wait takes a connection
        self._http = httpx.AsyncClient(base_url=url, headers=headers, timeout=timeout, **options)
        self._patience = patience

    async def __aenter__(self) -> Self:
        await self._http.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.__aexit__(kind, problem, trace)

    async def boot(self, request: BuildRequested) -> Accepted:
        """Request instances; return when the broker has the request."""
        return await self.send(Accepted, "POST", "/v1/requests", body=request)

    async def boot_many(self, requests: Sequence[BuildRequested]) -> tuple[Accepted, ...]:
        """Request instances for many requests together; a batch is accepted completely or not at all."""
        batch = BatchRequested(requests=tuple(requests))
        return (await self.send(BatchAccepted, "POST", "/v1/requests/batch", body=batch)).accepted

    async def request(self, id_: str, wait: float = 0.0) -> RequestState:
        """Return the state of a request; with `wait`, up to so many seconds later, when it has ended."""
        return await self.send(RequestState, "GET", f"/v1/requests/{id_}", {"wait": str(wait)})

    async def ended(self, id_: str, timeout: float = 600.0) -> RequestState:
        """Wait until all builds of a request have ended; return its state, or raise TimeoutError."""
        deadline = monotonic() + timeout
        while True:
            left = max(deadline - monotonic(), 0.0)
            state = await self.request(id_, min(left, LONG_POLL))
            if state.is_ended:
                return state
            if not left:
                raise TimeoutError(f"{id_} has not ended within {timeout:g} s")

    async def build(self, id_: str) -> BuildDetails:
        """Return a build with its decision and attempts."""
        return await self.send(BuildDetails, "GET", f"/v1/builds/{id_}")

    async def builds(self, **query: str) -> BuildsListed:
        """Return a page of instances that match the query; pass the page's `after` to get the next page."""
        return await self.send(BuildsListed, "GET", "/v1/builds", query)

    async def delete(self, build: str) -> BuildAccepted:
        """Request the deletion of a build; return when the broker has the request."""
        return await self.send(BuildAccepted, "DELETE", f"/v1/builds/{build}")

    async def newest_event(self, project: str = "") -> int:
        """Return the number of a project's newest event, to pass to `events`; `project` "": the token's
        project.
        """
        return (await self.send(EventsListed, "GET", "/v1/events", _of(project))).last

    async def events(self, after: int | None = None, project: str = "") -> AsyncIterator[Event]:
        """Yield a project's events without end: those numbered above `after`, or new ones if `after` is None.

        If `project` is "", the events are of the token's project. A lost connection is opened again, and
        continues after the last event that was yielded.
        """
        last = await self.newest_event(project) if after is None else after
        began = monotonic()
        while True:
            try:
                query = {**_of(project), "after": str(last)}
                async with self._http.stream("GET", "/v1/events/stream", params=query) as response:
                    if not response.is_success:
                        await response.aread()
                        _raise_refusal(response)
                    parser = _EventParser()
                    async for line in response.aiter_lines():
                        began = monotonic()
                        if (event := parser.add(line)) is not None:
                            last = event.number
                            yield event
            except httpx.TransportError:
                if monotonic() - began > self._patience:
                    raise
            except RestRefusal as refused:
                if refused.status not in _AWAY or monotonic() - began > self._patience:
                    raise
            await asyncio.sleep(0.2)

    async def send(
        self,
        answer: type[R],
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: msgspec.Struct | None = None,
    ) -> R:
        """Send a request to any operation, and return its answer as an object of the type `answer`; raise
        RestRefusal if it is refused.
        """
        content = None if body is None else parts.encoder().encode(body)
        for pause in _pauses(self._patience):
            try:
                response = await self._http.request(method, path, params=query, content=content)
            except httpx.TransportError:
                if pause is None:
                    raise
            else:
                if response.is_success:
                    return parts.decoder(answer).decode(response.content)
                if response.status_code not in _AWAY or pause is None:
                    _raise_refusal(response)
            assert pause is not None
            await asyncio.sleep(pause)
        raise AssertionError("the last attempt returns or raises")


def _of(project: str) -> dict[str, str]:
    return {"project": project} if project else {}


def _pauses(patience: float) -> Iterator[float | None]:
    """Yield the seconds to wait after each attempt until `patience` seconds have passed, then None: the next
    attempt is the last.
    """
    deadline, pause = monotonic() + patience, 0.1
    while monotonic() + pause < deadline:
        yield pause
        pause = min(2 * pause, 2.0)
    yield None


def _raise_refusal(response: httpx.Response) -> None:
    try:
        reason = response.json()["errors"][0]["detail"].rpartition("\n\n ")[2]
    except (ValueError, KeyError, IndexError, TypeError):
        reason = response.text[:200]
    raise RestRefusal(response.status_code, reason or response.reason_phrase)


class _EventParser:
    """Parses the lines of server-sent events."""

    def __init__(self) -> None:
        self._fields: dict[str, str] = {}

    def add(self, line: str) -> Event | None:
        """Parse the next line; return the event that it completes, or None."""
        name, _, value = line.partition(":")
        if line and name:
            self._fields[name] = value.removeprefix(" ")
        if line or "data" not in self._fields:
            return None
        fields, self._fields = self._fields, {}
        data = msgspec.Raw(fields["data"].encode())
        return Event(number=int(fields["id"]), event=fields["event"], data=data)
