"""The messages of clients: programs outside berth that act for certain projects.

A client publishes with the routing key `client.NAME` and sends queries with `ask.scheduler.client.NAME`. The
broker's topic permissions let no other client use these keys, so a message's key identifies its sender, also
in retries and dead letters.
"""

from dataclasses import replace
from typing import Annotated, Any, Literal

from msgspec import Meta, field

from bus.acts import Act, Requested, sent
from bus.audit_trail import Role
from bus.feature import MessagesPart
from bus.invalid_requests import KINDS, InvalidRequest, RequestKind
from bus.topics import ANYONE, Query, Topic, client_key
from bus.vocabulary import (
    Cause,
    ClientName,
    KeystoneId,
    LongList,
    Message,
    ReplyTo,
    ShortList,
    Text,
    Value,
    Word,
)


class RegisteredClient(Value, frozen=True, kw_only=True):
    """A client (a program outside berth, or an operator) and the projects that it acts for.

    A client with a role may also send the other messages that the role permits. If the client has cells or
    projects, its role is limited to them.
    """

    name: ClientName
    projects: Annotated[tuple[KeystoneId, ...], Meta(max_length=1000)]
    role: Role = ""
    cells: ShortList[Word] = ()


class ClientEditRequested(Message, frozen=True, kw_only=True):
    """An operator's edit that registers a client with exactly these projects, role and cells. An edit without
    projects and role removes the client.
    """

    client: ClientName
    projects: Annotated[tuple[KeystoneId, ...], Meta(max_length=1000)] = ()
    role: Role = ""
    cells: ShortList[Word] = ()


class ClientEditAnswered(Message, frozen=True, kw_only=True):
    before: RegisteredClient | None = None  # the former registration, if there was one


class FindClients(Message, frozen=True, kw_only=True):
    """A query for all registered clients (programs outside berth), or for those with the given names."""

    names: ShortList[ClientName] = ()


class ClientsFound(Message, frozen=True, kw_only=True):
    clients: LongList[RegisteredClient]  # sorted by name


class ClientRequested(Message, frozen=True, kw_only=True):
    """A client's request for one action: `boot` with the fields of build.requested, or `delete` with those of
    build.cancel. Features add actions, such as `move`.

    If a boot names no project, the instance is created for the client's project, if the client has only one.
    """

    client: ClientName
    do: Word  # the action
    message: Any  # the message that requests the action
    unknown_fields: ShortList[Cause] = ()  # as in BuildRequested


class ClientAsked(Message, frozen=True, kw_only=True):
    """A client's query. The answer has data of the client's projects only."""

    client: ClientName
    query: Word  # such as `builds`, `instances`, `decision`, `usages`
    message: Any = field(default_factory=dict)


class ClientAnswered(Message, frozen=True, kw_only=True):
    """The answer to a client's query, or the reason of a refusal in `refused`."""

    refused: Cause = ""
    answer: Any = None


class ClientRelay(Message, frozen=True, kw_only=True):
    """A message that a client wants to publish, or a question that it asks. A scheduler sends it on if the
    client's role permits that.
    """

    client: ClientName
    to: Text  # routing pattern of the topic, or name of the query
    message: Annotated[str, Meta(max_length=500_000)]  # as JSON
    seconds: Annotated[float, Meta(ge=0.1, le=120)] = 10.0  # time limit for the answer to a query


class RelayAnswered(Message, frozen=True, kw_only=True):
    """The answer to a relayed query as JSON, or the reason why the query has no answer."""

    answer: Annotated[str, Meta(max_length=1_000_000)] = ""
    problem: Literal["", "denied", "refused", "unavailable", "unroutable"] = ""
    why: Cause = ""


# fmt: off
CLIENT_REQUESTED = Topic("client.{client}", ClientRequested,
    "boot, delete, move or steer a move, as a registered client", ANYONE, "scheduler", of_client=True)
CLIENT_ASKED = Query("scheduler.client.{client}", ClientAsked, ClientAnswered,
    "builds, moves, decisions and usages of a client's own projects", ANYONE, "scheduler", of_client=True)
CLIENT_RELAY = Query("scheduler.relay.{client}", ClientRelay, RelayAnswered,
    "a message that is sent on if the client's role covers it", ANYONE, "scheduler", of_client=True)
CLIENTS = Query("scheduler.clients", FindClients, ClientsFound, "registered clients with their projects",
    ANYONE, "scheduler")
EDIT_CLIENT = Query("scheduler.edit_client", ClientEditRequested, ClientEditAnswered,
    "register a client for projects, or remove it", ANYONE, "scheduler")
# fmt: on


def actions() -> dict[str, RequestKind]:
    """Return the kinds of requests that clients may send, by their actions."""
    return {kind.action: kind for kind in KINDS.values() if kind.action}


def _refused(request: InvalidRequest) -> Message:
    """Return the refusal of a client's request as the answer to its action, as far as that can be read, else
    as the answer to a boot.
    """
    action, known = request.fields.get("do"), actions()
    # a text that is no JSON has the fields of the request as its own
    inner = request.fields.get("message", request.fields)
    contained = replace(
        request, fields=inner if isinstance(inner, dict) else {}, why=request.why.removeprefix("message.")
    )
    address = client_key(request.reply_to, contained.valid(ReplyTo, "reply_to", ""))
    kind = known.get(action if isinstance(action, str) else "", known["boot"])
    return kind.refused(replace(contained, reply_to=address))


PART = MessagesPart(
    acts=(Act("client", "admin", "projects and roles of clients", sent(EDIT_CLIENT)),),
    requested={
        ClientEditRequested: Requested(
            targets=("client",), state=lambda message: (CLIENTS, FindClients(names=(message.client,)))
        )
    },
    request_kinds=(RequestKind(CLIENT_REQUESTED, _refused),),
)
