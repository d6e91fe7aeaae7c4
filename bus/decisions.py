"""Decisions: why a build was placed on its host or got no host, the reason codes, and the data with which an
operator can reproduce a decision.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from msgspec import field, structs

from bus.parts import RequestParts
from bus.requests import Hints
from bus.vocabulary import (
    Cause,
    Compact,
    FreeText,
    Id,
    LargeMap,
    LongList,
    Message,
    Number,
    ProjectOrNone,
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
    decided_by: Text = ""  # what decided the values, such as a shape of which few copies fit


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


def tie_sentence(record: Record, totals: Mapping[str, float], chosen: str) -> str:
    """Return a sentence that says that a hash decided between the chosen host and others with an equal score;
    "" if the scores decided. `totals`: the scores of the recorded hosts, by root; `chosen`: a root.
    """

    def rank(host: RecordedHost) -> tuple[object, ...]:
        total = round(totals[host.root] / record.near) if record.near else totals[host.root]
        return total, host.chosen, host.outside, host.unknown

    able = {host.root: host for host in record.hosts if not host.refused}
    able = {root: host for root, host in able.items() if root == chosen or root not in record.turned_down}
    if chosen not in able:
        return ""
    name = able[chosen].host
    if record.subset > 1:
        return f"a hash of the request chose {name} among the {record.subset} best hosts (host_subset_size)"
    equal = sum(rank(host) == rank(able[chosen]) for host in able.values())
    return f"{equal} hosts have the best score: a hash of host and request chose {name}" if equal > 1 else ""


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
INVALID = "invalid"
UNREADABLE = "unreadable"
RULE_ERROR = "rule_error"
BACKLOG = "backlog"


class ReasonTable(NamedTuple):
    """Reason codes with their texts (docs/reasons.md). Tables with the same title are shown as one."""

    title: str
    codes: Mapping[str, str]
    lead: str = ""  # sentence above the table
    head: str = ""  # heading of the column with the texts
    # code → its words in counts of rejected hosts, such as "disabled: 2 hosts"; empty: the constraint's name
    counted: Mapping[str, str] = {}


OF_HOSTS = "Of hosts"  # codes of removals and near misses: the one that left no host is the decision's code
OF_THE_WHOLE = "Of the whole"  # codes of decisions if no single constraint removed the last host
OF_CLAIMS = "Of refused claims"  # codes of refused claims (RuleRefused) that are no reason of a decision

_CONSTRAINTS = {
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
    "chosen": "the free capacity of the host was just reserved for other requests, or would be taken by other"
    " instances of the request",
}
_COUNTED = {
    **dict.fromkeys(("host", "forbidden_host", "reserved", "cell_disabled", "chosen", "unseen"), ""),
    "disabled": "disabled",
    "down": "down",
    "has_agent": "without an agent or conductor",
    "tenant": "of other projects",
}
_ENDS = {
    "no_hosts": "placement has no hosts",
    "room": "hosts fit, but not for all instances together",
    "refused": "placement refused the claims on all hosts that fit",
    "claim": "placement rejects the claim as invalid",
    UNREADABLE: "the request is invalid: the reason names the field",
    INVALID: "the message cannot be read, and nothing was stored: the reason names the field",
    RULE_ERROR: "a filter or weigher raised an exception: the reason names it",
}
REASONS: dict[str, ReasonTable] = {}  # by title
# Refusals that a commit may end: code → the change after which the request can be tried again.
WAKES: dict[str, str] = {}  # filled by features


def add_reasons(tables: Iterable[ReasonTable]) -> None:
    """Add the reason codes of a feature."""
    for table in tables:
        known = REASONS.get(table.title, table)
        assert known is table or known.codes.keys().isdisjoint(table.codes), table.title
        REASONS[table.title] = known._replace(
            codes={**known.codes, **table.codes}, counted={**known.counted, **table.counted}
        )


def reason_text(code: str) -> str:
    """Return the text of a decision's reason code; "" for an unknown code."""
    return REASONS[OF_HOSTS].codes.get(code) or REASONS[OF_THE_WHOLE].codes.get(code, "")


add_reasons(
    (
        ReasonTable(OF_HOSTS, _CONSTRAINTS, head="the host is not had because", counted=_COUNTED),
        ReasonTable(
            OF_THE_WHOLE,
            _ENDS,
            "A decision has the code of the constraint that left no host, or else one of the following.",
            "there is no host because",
        ),
        ReasonTable(
            OF_CLAIMS,
            {},
            "Refusals and metrics of placement have the codes of the tables above, and these:",
            "the claim is refused because",
        ),
    )
)


class FindRefused(Message, frozen=True, kw_only=True):
    """A query for a page of the builds that ended without a host, sorted by id."""

    since: Seconds = 0.0  # only builds that ended at this time or later; seconds since 1970
    reply_to: ReplyTo = ""  # only builds whose request has this reply address
    project: ProjectOrNone = ""  # empty: all projects
    after: FreeText = ""  # only ids after this one


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
    """A page of builds that got no host, latest first."""

    builds: LongList[RefusedBuild] = ()
    last: Text = ""  # `after` of the next page; empty: this is the last page
