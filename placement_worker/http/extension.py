"""The extension points of the HTTP API: a feature adds URLs with their policy rules, or a method of
authentication.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from placement_worker.http import errors
from placement_worker.http.access import Headers, Identity, Scope, TokenChecker, digest_of
from placement_worker.http.allocations import search_candidates, why_none
from placement_worker.http.api_call import (
    LATEST_MINOR,
    ApiAnswer,
    ApiCall,
    Operation,
    delete,
    empty_answer,
    encode,
    get,
    json_answer,
    patch,
    post,
    put,
)
from placement_worker.http.schemas import is_uuid


@dataclass(frozen=True, kw_only=True)
class HttpPart:
    """A feature's part of the HTTP API."""

    routes: Mapping[str, tuple[Operation, ...]]  # by URL pattern, which begins with /berth/
    rules: Mapping[str, str]  # policy rule → its default
