"""Claims and releases of resources, the reasons of refusals, and queries about them."""

from typing import Annotated
from uuid import UUID, uuid5

from msgspec import Meta, field

from bus.groups import GroupPolicy
from bus.not_done import Contended
from bus.vocabulary import (
    END,
    UNSAID_ID,
    Allocations,
    Cause,
    Compact,
    Id,
    KeystoneId,
    LongList,
    Message,
    Ordinal,
    Shapes,
    Tagged,
    Text,
    Value,
    Whole,
)

CLEANUP = "CLEANUP"  # type of consumers that hold the resources of a guest that is to be deleted
MIGRATION = (
    # type of consumers that hold the source of a move, for its way back or until the guest is deleted
    "MIGRATION"
)
KEEPERS = (CLEANUP, MIGRATION)


def keeper(build: str, attempt: int) -> str:
    """Return the consumer that holds the resources of a guest that this attempt may have left behind."""
    return str(uuid5(UUID(build), f"what is left of attempt {attempt}"))


class Choice(Compact, frozen=True):
    """One way to satisfy a claim, with the shapes it was chosen under. An empty one gives everything back."""

    allocations: Allocations
    shapes: Shapes = field(default_factory=dict)


class ConsumerClaim(Value, frozen=True, kw_only=True):
    """Give this consumer the first of these choices that fits, in place of what it holds.

    `generation` is compared: None means that it holds nothing yet, a number is the last one seen. Unless
    `fenced`, its allocations are replaced without a comparison (clients of the API before 1.28). With
    `keep`, its former allocations are not released but given, in the same transaction, to the consumer of
    that name and of type CLEANUP: its guest may still exist.
    """

    consumer: Id
    generation: Ordinal | None
    fenced: bool = True
    choices: Annotated[tuple[Choice, ...], Meta(min_length=1, max_length=64)]
    project: KeystoneId = UNSAID_ID
    user: KeystoneId = UNSAID_ID
    # None: keep its type (clients of the API before 1.38)
    type: Annotated[str, Meta(pattern=r"^[A-Z0-9_]{1,255}" + END)] | None = "INSTANCE"
    keep: Id | None = None
    client: bool = False  # a client of the API claims, for a consumer that no cell knows
    # The server group it is in from now on, whose policy is judged with the claim; None: the one it was in.
    group: Id | None = None
    # A move begins by this name, at most once: with the claim the name is retired. Whoever keeps the old
    # place then does so as a MIGRATION, and may hold nothing yet.
    begins: Id | None = None
    # Instead of any choice: all that this one holds, who then holds nothing. It was there, so neither room
    # nor its group is judged.
    take_over: Id | None = None


# Why a choice was refused


class Full(Tagged, frozen=True, kw_only=True):
    """Not enough room; or `limit` names the unit rule that was broken (min_unit, max_unit, step_size).

    `limit` is `inventory` when the provider has none of this class at all.
    """

    provider: Text
    resource_class: Text
    asked: Whole
    free: Whole
    limit: Text = ""

    def __str__(self) -> str:
        if self.limit == "inventory":
            return f"{self.provider}: asked {self.asked} {self.resource_class}, it has none"
        if self.limit:
            return f"{self.provider}: {self.asked} {self.resource_class} breaks its {self.limit}"
        return f"{self.provider}: asked {self.asked} {self.resource_class}, {self.free} free"


class Moved(Tagged, frozen=True, kw_only=True):
    """Its inventory, traits, aggregates or tree have changed since it was chosen: choose again."""

    provider: Text

    def __str__(self) -> str:
        return f"{self.provider}: changed since it was chosen"


class Gone(Tagged, frozen=True, kw_only=True):
    provider: Text

    def __str__(self) -> str:
        return f"{self.provider}: no such provider any more"


class Crowded(Tagged, frozen=True, kw_only=True):
    """Its server group does not let it be there."""

    provider: Text  # the root
    group: Text
    policy: GroupPolicy
    members: Whole  # how many are there already

    def __str__(self) -> str:
        there = f"{self.members} of server group {self.group} there" if self.members else "none of it there"
        return f"{self.provider}: {self.policy}: {there}"


class NoGroup(Tagged, frozen=True, kw_only=True):
    """The server group of the claim is not in its project: another try cannot succeed."""

    group: Text

    def __str__(self) -> str:
        return f"server group {self.group}: there is none in this project"


class NothingHeld(Tagged, frozen=True, kw_only=True):
    """There is nothing to take over from this one: looking again will not help."""

    consumer: Text

    def __str__(self) -> str:
        return f"consumer {self.consumer} holds nothing that could be taken over"


class Walled(Tagged, frozen=True, kw_only=True):
    """A cell asked for something that belongs to others. Nothing was changed, and another try cannot
    succeed.
    """

    why: Cause

    def __str__(self) -> str:
        return self.why


Refusal = Full | Moved | Gone | Crowded | NoGroup | NothingHeld | Walled


# What came of it


class Claimed(Tagged, frozen=True, kw_only=True):
    choice: Whole  # which of the choices
    generation: Whole
    number: Whole  # the change that made it so, as in placement.changed
    refused: LongList[Refusal] = ()  # the better choices that did not fit, one reason each


class Held(Tagged, frozen=True, kw_only=True):
    """The consumer's generation is not the one you named: here is what it holds."""

    generation: Whole
    allocations: Allocations
    roots: LongList[Text] = ()  # of the trees that is of; a reshape may have moved it within them


class Retired(Tagged, frozen=True, kw_only=True):
    """The consumer has ended and will never hold again; `why` is how."""

    why: Cause
    unplaceable: bool = False  # no host was found for it; every later request for it gets this answer
    cell: Text = ""  # the cell that ended it; empty: not a cell


class Refused(Tagged, frozen=True, kw_only=True):
    refusals: LongList[Refusal]  # one for each choice; empty when another claim of the order failed


ClaimResult = Claimed | Held | Retired | Refused | Contended


class Released(Tagged, frozen=True, kw_only=True):
    number: Whole = 0


ReleaseResult = Released | Held | Retired | Walled | Contended


# Questions and answers


class ClaimRequested(Message, frozen=True, kw_only=True):
    """Several claims of one order are taken together or not at all."""

    claims: Annotated[tuple[ConsumerClaim, ...], Meta(min_length=1, max_length=1000)]
    cell: Text = ""  # that asks; empty: it is not asked from within one


class ClaimAnswered(Message, frozen=True, kw_only=True):
    results: LongList[ClaimResult]  # one for each claim, in order


class ReleaseRequested(Message, frozen=True, kw_only=True):
    """Release all allocations of this consumer. With `retire` it can never hold any again: its build has
    ended.

    `generation` is compared as in a claim: None means that it holds nothing, and only retires. Unless
    `fenced`, it is not compared. With `keep`, the allocations are given to the consumer of that name, as in
    a claim.
    """

    consumer: Id
    generation: Ordinal | None
    fenced: bool = True
    retire: Cause = ""
    unplaceable: bool = False  # with `retire`: it ends for want of a host
    keep: Id | None = None
    cell: Text = ""  # that asks, or, asked from outside, in whose name it is retired


class ReleaseAnswered(Message, frozen=True, kw_only=True):
    result: ReleaseResult
