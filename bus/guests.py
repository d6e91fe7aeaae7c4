"""Messages about guests that already exist: adoption by a cell, and questions to agents about their guests
and about the hosts that they reach.
"""

from typing import Annotated, Literal

from msgspec import Meta

from bus.messages import Selection
from bus.requests import BuildSpec
from bus.vocabulary import (
    Allocations,
    Amount,
    Cause,
    Compact,
    Id,
    LongList,
    Message,
    Ordinal,
    ReplyTo,
    ShortList,
    Text,
    Value,
    Whole,
    Word,
)


class BuildAdoptRequested(Message, frozen=True, kw_only=True):
    """Make a cell responsible for an instance that already runs and has allocations in placement.

    If the cell has no record of the build, the request is refused unless placement has exactly the
    allocations in `chosen`. If the cell has a record of the build, placement's allocations
    replace the record's.
    """

    build: Id  # also the id of the consumer
    cell: Word
    chosen: Selection  # the instance's host and all its allocations
    generation: Ordinal  # generation of the consumer
    spec: BuildSpec
    reply_to: ReplyTo = ""
    attempt: Amount = 1  # attempt number of the guest, if berth built it and the cell has lost the record
    strict: bool = False  # as in BuildRequested
    unknown_fields: ShortList[Cause] = ()


class BuildAdopted(Message, frozen=True, kw_only=True):
    build: Id
    cell: Word
    outcome: Literal["adopted", "known", "refused"]  # known: the cell already had a record of the build
    host: Text = ""
    why: Cause = ""  # why the adoption was refused
    reply_to: ReplyTo = ""
    code: Text = ""  # code of the refusal (docs/reasons.md)
    notes: ShortList[Cause] = ()  # fields of the request that are not known


class ReportedGuest(Compact, frozen=True):
    build: Text
    attempt: Whole
    root: Text
    state: Text  # arriving, running, stopped
    allocations: Allocations


class ProbedHost(Compact, frozen=True):
    root: Id
    host: Text
    ip: Text = ""  # empty: unknown


class HostsProbe(Value, frozen=True, kw_only=True):
    """A question to an agent: which of the given hosts does it reach over the network?"""

    id: Id  # id of the question, repeated in the answer
    hosts: ShortList[ProbedHost]


class ProbeResult(Value, frozen=True, kw_only=True):
    """The answer to HostsProbe. A host that the agent could not probe is not in `reached` or `unreached`."""

    id: Id
    reached: ShortList[Id] = ()
    unreached: ShortList[Id] = ()


class GuestsAsked(Message, frozen=True, kw_only=True):
    """A query to an agent for its guests of the given builds; if `builds` is empty, for a page of all its
    guests; if `probe` is set, for the hosts that it reaches over the network.
    """

    cell: Word
    agent: Word
    builds: Annotated[tuple[Id, ...], Meta(max_length=100)]
    reply_to: ReplyTo = ""
    after: Text = ""  # the last build of the previous page
    probe: HostsProbe | None = None


class GuestsReported(Message, frozen=True, kw_only=True):
    """The answer to GuestsAsked: the agent's guests of the given builds, or one page of all its guests; or
    the result of the probe.
    """

    cell: Word
    agent: Word
    builds: LongList[Id]
    guests: LongList[ReportedGuest] = ()
    reply_to: ReplyTo = ""
    after: Text = ""  # as in GuestsAsked
    more: bool = False  # there are further pages
    probed: ProbeResult | None = None
