"""Trials of a policy: recorded requests, evaluated with the present and with another policy."""

from typing import Annotated

from msgspec import Meta, field

from bus.feature import MessagesPart
from bus.messages import BuildRequested
from bus.topics import ANYONE, Query
from bus.vocabulary import Cause, Id, LargeMap, LongList, Message, Number, Text, Value, Whole

MOST_TRIED = 20  # requests in one query


class TrialPolicy(Value, frozen=True, kw_only=True):
    """All filters, weighers and options of a policy to try. Functions that an operator wrote can be used only
    if the scheduler's present policy uses them.
    """

    filters: LongList[Text] = ()  # empty: the default filters
    weighers: LargeMap[Text, Number] = field(default_factory=dict)  # multipliers; empty: the default weighers
    options: LargeMap[Text, Annotated[str, Meta(max_length=4000)]] = field(default_factory=dict)  # as JSON
    subset: Whole = 1
    near: Number = 0.0
    # what else the trial supposes: its subject, such as `reservations` → as JSON
    supposes: LargeMap[Text, Annotated[str, Meta(max_length=1_000_000)]] = field(default_factory=dict)


class TryPolicy(Message, frozen=True, kw_only=True):
    """A query: which hosts would the given requests get now, with the present policy and with `policy`?"""

    policy: TrialPolicy
    requests: Annotated[tuple[BuildRequested, ...], Meta(min_length=1, max_length=MOST_TRIED)]


class TrialChoice(Value, frozen=True, kw_only=True):
    """The hosts that a request would get with one policy, or why it would get no host."""

    roots: LongList[Id] = ()
    hosts: LongList[Text] = ()  # the hosts' names
    why: Cause = ""  # why there is no host
    code: Text = ""  # why there is no host: a reason code (docs/reasons.md)
    replaces: Whole = 0  # number of instances whose place the request would take


class TrialResult(Value, frozen=True, kw_only=True):
    """The hosts of one request with the present policy, and with the policy on trial."""

    present: TrialChoice
    trial: TrialChoice


class PolicyTried(Message, frozen=True, kw_only=True):
    """The answer to TryPolicy, with one result for each request, from the same state of all hosts."""

    results: LongList[TrialResult] = ()
    refusal: Cause = ""  # why the policy is invalid, or cannot be tried


TRY_POLICY = Query(
    "scheduler.try_policy",
    TryPolicy,
    PolicyTried,
    "the hosts of requests with the present and with a changed policy, without claiming",
    ANYONE,
    "scheduler",
)

PART = MessagesPart()
