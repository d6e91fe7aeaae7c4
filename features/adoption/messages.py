"""Messages about the adoption of instances by a cell, and the part of adoption in claims."""

from typing import ClassVar, Literal

from bus.acts import Act, sent
from bus.feature import MessagesPart
from bus.invalid_requests import InvalidRequest, RequestKind
from bus.messages import Selection
from bus.parts import ClaimParts, ConsumerPart
from bus.requests import BuildSpec
from bus.topics import ANYONE, Topic, outcome
from bus.vocabulary import Amount, Cause, Id, Message, Ordinal, ReplyTo, ShortList, Text, Word


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
    """The answer to a request to take over an instance."""

    build: Id
    cell: Word
    outcome: Literal["adopted", "known", "refused"]  # known: the cell already had a record of the build
    host: Text = ""
    why: Cause = ""  # why the adoption was refused
    reply_to: ReplyTo = ""
    code: Text = ""  # code of the refusal (docs/reasons.md)
    notes: ShortList[Cause] = ()  # fields of the request that are not known


class Adopts(ConsumerPart, frozen=True, kw_only=True):
    """An operator adopts the guest of the consumer, although the consumer was retired as unplaceable."""

    revives: ClassVar = True


# fmt: off
BUILD_ADOPT = Topic("build.adopt.{cell}", BuildAdoptRequested,
    "take over an instance that was created without berth", ANYONE, "that cell's conductor")
BUILD_ADOPTED = outcome("build.adopted.{cell}", BuildAdopted,
    "outcome of the adoption of an instance", "conductor", clients=False)
# fmt: on


# The act on instances that were created without berth, and the refusal of invalid requests for it.


def _not_adopted(request: InvalidRequest) -> Message:
    return BuildAdopted(
        build=request.id("build"),
        cell=request.cell_of(),
        outcome="refused",
        why=request.why,
        code=request.code,
        reply_to=request.reply_to,
    )


PART = MessagesPart(
    parts={ClaimParts: Adopts},
    beginnings=(BuildAdoptRequested,),
    acts=(Act("adopt", "admin", "adopt instances that were created without berth", sent(BUILD_ADOPT)),),
    request_kinds=(RequestKind(BUILD_ADOPT, _not_adopted),),
)
