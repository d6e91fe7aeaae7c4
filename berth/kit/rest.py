"""The extension point of the REST API: a feature adds operations, and the ends of its requests."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from berth.kit.http_descriptions import DescribedOperation, OperationKey
from berth.kit.rest_ends import EndRule
from berth.rest.call import Handler
from bus.vocabulary import Message


@dataclass(frozen=True)
class RestOperation:
    """An operation of the REST API: its description for OpenAPI, and the function that executes it."""

    described: DescribedOperation
    handler: Handler


@dataclass(frozen=True, kw_only=True)
class RestPart:
    """A feature's part of the REST API."""

    operations: Mapping[OperationKey, RestOperation]
    # messages for clients that the log of ends stores
    ends: Mapping[type[Message], EndRule] = field(default_factory=dict)
