"""Questions to agents about their guests, and about the hosts that they reach."""

from typing import Annotated

from msgspec import Meta

from bus.vocabulary import (
    Allocations,
    Compact,
    Id,
    LongList,
    Message,
    ReplyTo,
    ShortList,
    Text,
    Value,
    Whole,
    Word,
)


class ReportedGuest(Compact, frozen=True):
    """A guest on an agent's host, with the allocations of its order."""

    build: Text
    attempt: Whole
    root: Text
    state: Text  # arriving, running, stopped
    allocations: Allocations


class ProbedHost(Compact, frozen=True):
    """A host whose reachability an agent tests: by its name, or by its address if that is known."""

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
