"""Messages that claim and release resources, with their results and the reasons of refusals."""

from typing import Annotated, Literal
from uuid import UUID, uuid5

from msgspec import Meta, field

from bus.parts import ChoiceParts, ClaimParts, none_of
from bus.vocabulary import (
    UNSAID_ID,
    Allocations,
    Cause,
    Compact,
    Contended,
    Id,
    Key,
    KeystoneId,
    LongList,
    Message,
    Ordinal,
    Shapes,
    Tagged,
    Text,
    UpperName,
    Value,
    Whole,
)

CLEANUP = "CLEANUP"  # type of consumers that hold the resources of a guest until it is deleted
MIGRATION = "MIGRATION"  # type of consumers that hold the source of a move until it is confirmed or reverted
HOLDER_TYPES = (CLEANUP, MIGRATION)
STARTED = "started"  # why the id that a claim `begins` is retired: no other claim may begin it


def holder_consumer(build: str, attempt: int) -> str:
    """Return the id of the holder consumer for a guest that an attempt of a build may have left behind."""
    return str(uuid5(UUID(build), f"what is left of attempt {attempt}"))


class Choice(Compact, frozen=True):
    """A set of allocations to claim ({}: release all), with the shape that each of its providers had when the
    candidate was found.
    """

    allocations: Allocations
    shapes: Shapes = field(default_factory=dict)
    parts: ChoiceParts | None = None


# the generation that a consumer must have; None: no allocations; any: not compared
ExpectedGeneration = Ordinal | Literal["any"] | None


class ConsumerClaim(Value, frozen=True, kw_only=True):
    """A claim that replaces a consumer's allocations by one of `choices`: the first set that fits.

    The claim is refused if the consumer's generation is not `generation` (None: the consumer must have no
    allocations; "any": generations are not compared, as in the Placement API before 1.28). With `keep`, the
    former allocations go to a consumer with the id `keep` and type CLEANUP, because the guest may still
    exist.
    """

    consumer: Id
    generation: ExpectedGeneration
    choices: Annotated[tuple[Choice, ...], Meta(min_length=1, max_length=64)]
    project: KeystoneId = UNSAID_ID
    user: KeystoneId = UNSAID_ID
    # consumer type; None: unchanged (the Placement API before 1.38 has no types)
    type: UpperName | None = "INSTANCE"
    keep: Id | None = None
    # True: claimed by a client of the Placement API; no cell has a record of the consumer
    client: bool = False
    # Id of a move that begins with this claim, at most once: the claim retires the id. The holder consumer
    # of the source is then of type MIGRATION.
    begins: Id | None = None
    # Take over all allocations of this consumer, instead of claiming one of the choices. Neither capacity nor
    # a rule is checked. The consumer keeps its allocations at pools, up to the amounts of the first
    # choice, because a move counts an amount of a pool only once.
    take_over: Id | None = None
    parts: ClaimParts = none_of(ClaimParts)


class Full(Tagged, frozen=True, kw_only=True):
    """The reason of a refused claim: the provider cannot give the amount of a resource class. `limit` is the
    violated rule (min_unit, max_unit, step_size), `inventory` if the provider has no inventory of the class,
    or empty if the free capacity is too small.
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
    """The reason of a refused claim: the provider's shape has changed since the search. Search again."""

    provider: Text

    def __str__(self) -> str:
        return f"{self.provider}: changed since it was chosen"


class NoSuchProvider(Tagged, frozen=True, kw_only=True):
    """The refusal of a claim on a provider that placement does not have, for example because it
    is deleted.
    """

    provider: Text

    def __str__(self) -> str:
        return f"{self.provider}: no such provider any more"


class NothingHeld(Tagged, frozen=True, kw_only=True):
    """The reason of a refused claim: the consumer whose allocations it takes over (`take_over`) has none. Do
    not retry.
    """

    consumer: Text

    def __str__(self) -> str:
        return f"consumer {self.consumer} holds nothing that could be taken over"


class OutsideCell(Tagged, frozen=True, kw_only=True):
    """The reason of a refused claim: a cell claimed resources of another cell. A retry cannot succeed."""

    why: Cause

    def __str__(self) -> str:
        return self.why


class RuleRefused(Tagged, frozen=True, kw_only=True):
    """The reason of a refused claim: a rule of a feature forbids it."""

    rule: Text  # the feature that refuses
    code: Text  # reason code of the feature
    why: Cause
    provider: Text = ""  # root or provider that the next search avoids
    final: bool = False  # a claim of this kind cannot succeed for the request, on whichever host
    wakes_on: Key = ""  # key of the commits that may let the claim succeed, such as `RULE:PROJECT`

    def __str__(self) -> str:
        return self.why


Refusal = Full | Moved | NoSuchProvider | NothingHeld | OutsideCell | RuleRefused


class Claimed(Tagged, frozen=True, kw_only=True):
    """The result of a successful claim: the allocations of the consumer are written."""

    choice: Whole  # index of the choice
    generation: Whole
    number: Whole  # change number, as in placement.changed
    refused: LongList[Refusal] = ()  # why the choices before `choice` were refused


class Held(Tagged, frozen=True, kw_only=True):
    """The refusal of a claim or release because the consumer has another generation, or because the holder
    consumer with the id `keep` already has allocations. Contains the claim's consumer's present allocations.
    """

    generation: Whole
    allocations: Allocations
    roots: LongList[Text] = ()  # roots of the providers in `allocations`


class Retired(Tagged, frozen=True, kw_only=True):
    """The result of a claim for a retired consumer: its build has ended, or has no host until a move."""

    why: Cause
    unplaceable: bool = False  # retired because no host was found
    revivable: bool = False  # a claim that begins a move revives the consumer
    cell: Text = ""  # the cell that retired the consumer; empty: another worker


class Refused(Tagged, frozen=True, kw_only=True):
    """The result of a claim if none of its sets of allocations was possible, with the reason for each set."""

    refusals: LongList[Refusal]  # one for each choice; empty if another claim of the request failed


ClaimResult = Claimed | Held | Retired | Refused | Contended


class Released(Tagged, frozen=True, kw_only=True):
    """The answer to a successful release. `number`: the change number; 0 if nothing was allocated."""

    number: Whole = 0


ReleaseResult = Released | Held | Retired | OutsideCell | Contended


class ClaimRequested(Message, frozen=True, kw_only=True):
    """Claim resources for several consumers: all claims succeed, or no claim does."""

    claims: Annotated[tuple[ConsumerClaim, ...], Meta(min_length=1, max_length=1000)]
    cell: Text = ""  # the asking cell; empty: not asked by a cell


class ClaimAnswered(Message, frozen=True, kw_only=True):
    """Placement's answer to a list of claims that are written together or not at all."""

    results: LongList[ClaimResult]  # one for each claim, in order


class ReleaseRequested(Message, frozen=True, kw_only=True):
    """Release all allocations of a consumer. With `retire`, its build has ended and it can never claim again.

    The release is refused if the consumer's generation is not `generation` (None: the consumer has no
    allocations and is only retired; "any": generations are not compared). With `keep`, the allocations go to
    a consumer with the id `keep`, as in a claim.
    """

    consumer: Id
    generation: ExpectedGeneration
    retire: Cause = ""
    unplaceable: bool = False  # with `retire`: no host was found
    revivable: bool = False  # with `retire`: a claim that begins a move revives the consumer
    keep: Id | None = None
    cell: Text = ""  # the asking cell, or the cell on whose behalf the consumer is retired


class ReleaseAnswered(Message, frozen=True, kw_only=True):
    result: ReleaseResult
