"""The description of an HTTP operation, from which the OpenAPI document is made."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

JSON = "application/json"


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
