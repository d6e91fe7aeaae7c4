"""Undoes recorded acts: finds them by id, checks that no later act changed the target, and reverses them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from berth.kit.short_ids import SHORTEST_ID, short
from berth.kit.timeline import acts_found
from bus import acts
from bus.audit_trail import ActRecord, FindActs
from bus.errors import OperationRefused
from bus.topics import Query
from bus.undo import NotUndoable, Past
from bus.vocabulary import Message

if TYPE_CHECKING:
    from bus.delivery.recording import RecordingBus

NO_ACT = "`berth audit log` lists acts with their ids"
_STATE_SECONDS = 5.0


@dataclass(frozen=True)
class Reversal:
    """The requests to one query that undo an act."""

    record: ActRecord
    query: Query[Any, Any]
    requests: Sequence[Message]

    async def send(self, bus: "RecordingBus") -> None:
        """Undo the act; raise OperationRefused if a request is refused."""
        ask = bus.asker(self.query)
        for request in self.requests:
            if why := acts.refusal(await ask(request)):
                raise OperationRefused(f"{self.record.act} {short(self.record.id)}: {why}")


async def named_acts(bus: "RecordingBus", id_: str) -> Sequence[ActRecord]:
    """Return the act whose id begins so, or all acts of the command whose id does, the latest first."""
    if len(id_) < SHORTEST_ID:
        raise OperationRefused(f"{id_!r}: give at least {SHORTEST_ID} characters of the id")
    try:
        question = msgspec.convert({"id": id_.lower()}, FindActs)
    except msgspec.ValidationError:
        raise OperationRefused(f"{id_!r} is no id: {NO_ACT}") from None
    found = [record async for record in acts_found(bus, question)]
    exact = [record for record in found if record.id.startswith(id_.lower())]
    if len(exact) > 1 or (not exact and len({record.request for record in found}) > 1):
        ids = ", ".join(sorted(record.id for record in exact or found)[:5])
        raise OperationRefused(f"several acts have an id that begins with {id_!r}: {ids}")
    if not found:
        raise OperationRefused(f"no act has the id {id_!r}: {NO_ACT}")
    return exact or found


async def reversal(bus: "RecordingBus", record: ActRecord, *, anyway: bool = False) -> Reversal:
    """Return what undoes an act. Raise OperationRefused if it cannot be undone, or if a later act of its kind
    on the same target is recorded; `anyway`: whatever came later.
    """
    of_act = f"{record.act} {short(record.id)}"
    try:
        undo, asked = acts.undoable(record)
        if not anyway and (later := await _later(bus, record)):
            raise NotUndoable(
                f"{later.operator.name} changed {record.name or record.target} later ({short(later.id)});"
                " undo that first, or give --anyway"
            )
        now: Message | None = None
        if (state := acts.state_query(asked)) is not None:
            query, question = state
            now = await bus.asker(query, timeout=_STATE_SECONDS)(question)
        past = Past(before=_stored(record.before), after=_stored(record.after), now=now)
        requests = undo.requests(asked, past)
        if not requests:
            raise NotUndoable("nothing of it is left")
    except NotUndoable as problem:
        raise OperationRefused(f"{of_act} cannot be undone: {problem}") from None
    return Reversal(record, undo.query, requests)


async def _later(bus: "RecordingBus", record: ActRecord) -> ActRecord | None:
    """Return a later act of the same kind that changed one of the targets; None if there is none."""
    for target in record.targets or (record.target,):
        question = FindActs(act=record.act, target=target, since=record.at, outcome="done")
        found = [
            each
            async for each in acts_found(bus, question)
            if each.id != record.id and each.at > record.at and (each.before or each.after)
        ]
        if found:
            return found[-1]
    return None


def _stored(state: str) -> dict[str, Any]:
    """Return a state that the audit trail has stored."""
    if not state:
        return {}
    try:
        found = msgspec.json.decode(state)
    except msgspec.DecodeError:
        raise NotUndoable("its state was longer than the audit trail stores") from None
    return found if isinstance(found, dict) else {}
