"""Decisions: why a build was placed on its host or got no host, the reason codes, and the data with which an
operator can reproduce a decision.
"""

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, field, structs

from bus.parts import RequestParts
from bus.requests import Hints
from bus.vocabulary import (
    Cause,
    Compact,
    Id,
    LargeMap,
    LongList,
    Message,
    Number,
    ReplyTo,
    Seconds,
    Text,
    TraitName,
    Value,
    Whole,
    Zone,
)


class Removal(Value, frozen=True, kw_only=True):
    """The number of hosts that one filter or requested resource excluded from a search (`removed`), and the
    number of hosts that remained (`left`).
    """

    constraint: Cause
    removed: Whole
    left: Whole
    about: Text = ""  # the field of the request that excluded the hosts, such as `cell`
    code: Text = ""  # code of the constraint (docs/reasons.md)
    hosts: LongList[Text] = ()  # some of the removed hosts, by name


class NearMiss(Value, frozen=True, kw_only=True):
    """A host that nearly satisfied a request, and the amounts or properties that it lacks."""

    host: Text
    lacks: Cause
    code: Text = ""


class RecordedScale(Compact, frozen=True):
    """The scale of one weigher's values in a decision: lowest and highest of all hosts, and multiplier."""

    weigher: Text
    multiplier: Number
    lowest: Number
    highest: Number
    clamped: bool = False  # values below the lowest count as the lowest


class RecordedHost(Compact, frozen=True):
    """A host in a decision, with one value per weigher, in the same order as `scales` of the decision."""

    root: Text
    host: Text
    values: LongList[Number]
    refused: Cause = ""  # the filter that rejected the host, and why; empty: no filter did
    # weigher → multiplier, if an aggregate of the host overrides it
    multipliers: LargeMap[Text, Number] = field(default_factory=dict)
    # how often the evaluation chose the host before; of equal hosts, the one with the lowest number is first
    chosen: Whole = 0
    outside: bool = False  # in another scheduler's share, or unknown: chosen only if no other host is left
    unknown: bool = False  # no heartbeat so far: chosen only if no other host of any share is left


class AlsoAsked(Value, frozen=True, kw_only=True, omit_defaults=True):
    """Fields of a request that limit its hosts in addition to flavor and image, such as zone and scheduler
    hints."""

    zone: Zone = ""
    cell: Text = ""
    aggregates: LongList[LongList[Id]] = ()
    not_aggregates: LongList[Id] = ()
    hints: Hints | None = None
    forced_host: Text = ""
    wanted_host: Text = ""
    ignore_hosts: LongList[Text] = ()
    preferred_traits: LargeMap[TraitName, Number] = field(default_factory=dict)
    parts: RequestParts | None = None


class Record(Value, frozen=True, kw_only=True):
    """The data to reproduce a decision: the best hosts, best first, and how the weighers rated them."""

    flavor: Whole = 0  # 0: the requested flavor; n: alternative flavor number n
    seed: Text = ""  # seed of the random choice among equal hosts
    near: Number = 0.0  # scores closer than this are equal
    subset: Whole = 1  # the host was drawn from this many best hosts
    scales: LongList[RecordedScale] = ()
    hosts: LongList[RecordedHost] = ()
    turned_down: LongList[Text] = ()  # roots of better hosts for which the claim was refused
    asked: AlsoAsked | None = None  # demands in addition to flavor and image


class Decision(Value, frozen=True, kw_only=True):
    """Why a build was placed on its host, or got no host."""

    considered: Whole = 0
    removals: LongList[Removal] = ()
    nearest: LongList[NearMiss] = ()
    scores: LargeMap[Text, Number] = field(default_factory=dict)
    refused: LongList[Cause] = ()  # earlier choices, whose claims placement refused
    code: Text = ""  # why there is no host: a reason code (docs/reasons.md)
    helps: LongList[Cause] = ()  # changes that would make the request fit
    notes: LongList[Cause] = ()  # parts of the request without effect
    record: Record | None = None


def noted(decision: Decision, notes: tuple[str, ...]) -> Decision:
    """Return a decision with these notes before its own."""
    return structs.replace(decision, notes=(*notes, *decision.notes)) if notes else decision


EXCLUDED = "excluded by the request"  # name of placement's constraint with the code forbidden_host

# Codes of removals and near misses. The constraint that removed the last host gives the decision its code.
CONSTRAINTS: Mapping[str, str] = {
    "cell": "the host is in another cell",
    "cell_disabled": "an operator has disabled the cell of the host",
    "zone": "the host is in another zone",
    "host": "the host is not the requested one",
    "forbidden_host": "the request excludes the host",
    "reserved": "the host is reserved for a waiting request, or being drained",
    "class": "the host has too little free capacity of a resource class, or no inventory of it",
    "trait": "the host lacks a required trait",
    "forbidden_trait": "the host has a forbidden trait",
    "aggregate": "the host is in no requested aggregate",
    "forbidden_aggregate": "the host is in an excluded aggregate",
    "tree": "the host is not the requested tree",
    "group": "no single provider of the host has all resources and traits of a request group",
    "together": "each request group fits, but not all together",
    "unseen": "the search stopped early because of too many combinations",
    "has_agent": "the host has no agent, or its cell has no conductor",
    "down": "the host sends no heartbeats, or is forced down by an operator",
    "disabled": "the host is disabled by an operator or its agent",
    "tenant": "the host is dedicated to other projects",
    "server_group": "the policy of the server group forbids the host",
    "topology": "the domain of the host (rack, row, ...) breaks a constraint, or cannot take all instances",
    "chosen": "the free capacity of the host was just reserved for other requests, or would be taken by other"
    " instances of the request",
}

OVER_QUOTA = "quota"
BACKLOG = "backlog"
INVALID = "invalid"
RULE_ERROR = "rule_error"
CRASHED = "crashed"

# Codes of decisions when no single constraint removed the last host.
ENDS: Mapping[str, str] = {
    "no_hosts": "placement has no hosts",
    "room": "hosts fit, but not for all instances together",
    "refused": "placement refused the claims on all hosts that fit",
    "claim": "placement rejects the claim as invalid",
    OVER_QUOTA: "the project would exceed its quota",
    "no_server_group": "the server group does not exist in this project",
    "reservation": "the reservation that the request names has no undrawn slot for it, or is not active",
    "unreadable": "the request is invalid: the reason names the field",
    INVALID: "the message cannot be read, and nothing was stored: the reason names the field",
    RULE_ERROR: "a filter or weigher raised an exception: the reason names it",
    "waited": "the request waited for its maximum time without free capacity",
    "cancelled": "the request was cancelled while it waited",
    CRASHED: "the processes of several schedulers ended while they evaluated the waiting request",
    BACKLOG: "the request was taken from the broker and stored, and was not evaluated yet",
    "line": "the request waits behind requests of the same equivalence class",
    "client": "the client is not registered for the project, or may not send this request",
}

# Codes of refused claims (RuleRefused) that are no reason of a decision.
REFUSED_CLAIMS: Mapping[str, str] = {
    "outside_cell": "a cell's claim has something that only other workers may claim",
    "not_preemptible": "the instance to preempt has changed, or must not be preempted",
    "preemption_budget": "the project has preempted too many instances within one hour",
}

# Refusals that a commit may end: code → the change that lets a waiting request be tried again.
WAKES: Mapping[str, str] = {OVER_QUOTA: "the project uses less, or its quota is raised"}

# Codes of moves that did not begin, if a decision about hosts is not the reason.
MOVES: Mapping[str, str] = {
    "unknown": "no cell has a record of the instance",
    "no_conductor": "the conductor of the cell did not answer or act on the move",
    "status": "the instance is not active, or for an unshelve not shelved; or it has ended meanwhile",
    "moving": "the instance is in another move, or another move of it waits for capacity",
    "held": "its allocations in placement differ from its cell's records",
    "not_fenced": "evacuate: the host is not forced down, so the guest may still run",
    "source_down": "the host is forced down: the instance can only be evacuated",
    "bare_metal": "the instance is on a bare-metal node",
    "same_host": "the instance is on the wanted host already",
    "not_on_source": "the instance is not on the expected host (`source`): it was moved meanwhile",
    "image": "rebuild: its host does not satisfy the new image",
}

# Codes of plans that make room, if not all builds fit.
PLANS: Mapping[str, str] = {
    "no_host": "no host would fit the flavor, even if it were empty; or no further host may get a build"
    " because of a server group or topology",
    "immovable": "on every host that would fit it, too much capacity is held by what cannot move",
    "budget": "more moves are necessary than the budget permits",
    "destinations": "the instances that would have to leave fit on no other host",
    "changing": "hosts refused every plan that was tried, or changed meanwhile",
    "taken": "another plan has closed one of the hosts",
    "opened": "one of the closed hosts was opened by an operator, or because no scheduler was reachable",
    "unreleased": "agents have not reported the destruction of moved guests in time",
}


class FindRefused(Message, frozen=True, kw_only=True):
    """A query for a page of the builds that ended without a host, sorted by id."""

    since: Seconds = 0.0  # only builds that ended at this time or later; seconds since 1970
    reply_to: ReplyTo = ""  # only builds whose request has this reply address
    project: Annotated[str, Meta(max_length=255)] = ""  # empty: all projects
    after: Text = ""  # only ids after this one


class RefusedBuild(Value, frozen=True, kw_only=True):
    """A build that ended without a host."""

    build: Id
    request: Id
    name: Text = ""
    status: Text = "refused"
    project: Text
    flavor: Text
    since: Seconds  # when the build ended
    reason: Cause = ""


class RefusedFound(Message, frozen=True, kw_only=True):
    builds: LongList[RefusedBuild] = ()
    last: Text = ""  # `after` of the next page; empty: this is the last page
