"""The extension points of the HTTP API: a feature adds URLs, with their policy rules and descriptions, or a
method of authentication.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from placement_worker.http import errors
from placement_worker.http.access import Headers, Identity, Scope, TokenChecker, digest_of
from placement_worker.http.api_call import (
    ApiAnswer,
    ApiCall,
    DescribedOperation,
    Operation,
    delete,
    empty_answer,
    get,
    json_answer,
    patch,
    post,
    put,
)

__all__ = [
    "ApiAnswer",
    "ApiCall",
    "DescribedOperation",
    "Headers",
    "HttpPart",
    "Identity",
    "Operation",
    "Scope",
    "TokenChecker",
    "delete",
    "digest_of",
    "empty_answer",
    "errors",
    "get",
    "json_answer",
    "patch",
    "post",
    "put",
]


@dataclass(frozen=True, kw_only=True)
class HttpPart:
    """A feature's part of the HTTP API: the value HTTP of its module `http`."""

    routes: Mapping[str, tuple[Operation, ...]]  # by URL pattern, which begins with /berth/
    rules: Mapping[str, str]  # policy rule → its default
    described: Mapping[tuple[str, str], DescribedOperation]  # by URL pattern and method
    in_path: Mapping[str, str] = field(default_factory=dict)  # variable of a URL pattern → its description
