"""Instances that were there before berth was: how a cell takes one over, or learns what one holds."""

from typing import Literal

from bus.messages import ReplyTo, Selection
from bus.requests import BuildSpec
from bus.vocabulary import Cause, Id, Message, Ordinal, Text, Word


class BuildAdoptRequested(Message, frozen=True, kw_only=True):
    """An instance runs there, as placement holds it: from now on it is a build of this cell.

    Of one the cell has there already it says what that holds by now. The cell asks placement before it
    believes any of it.
    """

    build: Id  # the consumer
    cell: Word
    chosen: Selection  # its host, with all that it holds
    generation: Ordinal  # of the consumer
    spec: BuildSpec
    reply_to: ReplyTo = ""


class BuildAdopted(Message, frozen=True, kw_only=True):
    """What came of it."""

    build: Id
    cell: Word
    outcome: Literal["adopted", "known", "refused"]  # known: it was the cell's already
    host: Text = ""
    why: Cause = ""  # refused
    reply_to: ReplyTo = ""
