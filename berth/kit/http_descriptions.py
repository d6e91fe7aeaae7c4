"""Describes the operations that a feature adds to an HTTP API, for its OpenAPI document."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from placement_worker.http.errors import JSON
from placement_worker.http.extension import HttpPart

OperationKey = tuple[str, str]  # URL pattern and method


EVENT_STREAM = "text/event-stream"


@dataclass(frozen=True)
class DescribedOperation:
    """An operation as the OpenAPI document describes it: summary, parameters, bodies and statuses."""

    summary: str
    answer: type[Any] | None = None  # the response's body; None: no body
    body: type[Any] | None = None
    query: Mapping[str, str] | None = None  # parameter → its description
    status: int = 200
    further: Mapping[int, str] | None = None  # other successful statuses → their descriptions
    refusals: tuple[int, ...] = ()
    media: str = JSON
    is_open: bool = False  # True: needs no token


@dataclass(frozen=True, kw_only=True)
class HttpDescription:
    """Describes a feature's part of the Placement API."""

    operations: Mapping[OperationKey, DescribedOperation]
    in_path: Mapping[str, str] = field(default_factory=dict)  # variable of a URL pattern → its description


@dataclass(frozen=True)
class HttpApiPart:
    """A feature's operations of the Placement API, and their description."""

    part: HttpPart
    description: HttpDescription
