"""What an agent has, asked of the agent itself: a witness that is neither its cell nor placement."""

from typing import Annotated

from msgspec import Meta

from bus.messages import ReplyTo
from bus.vocabulary import Allocations, Compact, Id, LongList, Message, Text, Whole, Word


class GuestTold(Compact, frozen=True):
    """A guest that is there, by its build and attempt."""

    build: Text
    attempt: Whole
    root: Text
    state: Text  # arriving, running, stopped
    allocations: Allocations


class GuestsAsked(Message, frozen=True, kw_only=True):
    """Which guests of these builds do you have? Of no builds: which have you at all, a page at a time?"""

    cell: Word
    agent: Word
    builds: Annotated[tuple[Id, ...], Meta(max_length=100)]
    reply_to: ReplyTo = ""
    after: Text = ""  # the last build of the page before


class GuestsTold(Message, frozen=True, kw_only=True):
    """All of them; of the builds that are not named among `guests` there is none. A page names none."""

    cell: Word
    agent: Word
    builds: LongList[Id]
    guests: LongList[GuestTold] = ()
    reply_to: ReplyTo = ""
    after: Text = ""  # what was asked
    more: bool = False  # there are others behind these
