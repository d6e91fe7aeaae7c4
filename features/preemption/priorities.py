"""Priority classes: stored in the schedulers' database, and read again by each scheduler periodically."""

from collections.abc import Iterable, Mapping

import msgspec
from sqlalchemy.exc import IntegrityError

from bus.messages import BuildRequested
from bus.sql.database import Database
from bus.sql.statement import sql
from bus.vocabulary import Missing, Taken
from features.preemption.messages import (
    FindPriorities,
    PrioritiesFound,
    PriorityClass,
    PriorityEditAnswered,
    PriorityEdited,
    PriorityEditRequested,
    SetPriority,
)
from features.waiting.messages import priority_of

_FIND = sql("SELECT spec FROM priority_classes ORDER BY priority")
_DELETE = sql("DELETE FROM priority_classes WHERE name = :called RETURNING spec")
_INSERT = sql("INSERT INTO priority_classes (name, priority, spec) VALUES (:called, :priority, :spec)")

_decode = msgspec.json.Decoder(PriorityClass).decode
_encode = msgspec.json.Encoder().encode


class Priorities:
    """Priority classes by value."""

    def __init__(self, classes: Iterable[PriorityClass] = ()) -> None:
        self.by_value: Mapping[int, PriorityClass] = {each.value: each for each in classes}

    def of(self, request: BuildRequested) -> PriorityClass | None:
        """Return the class of a request if the class permits to preempt instances, else None."""
        found = self.by_value.get(priority_of(request.parts))
        return found if found is not None and found.preempts else None


class PriorityClasses(Priorities):
    """The stored priority classes as last read, and the handlers of queries about them."""

    def __init__(self, database: Database) -> None:
        super().__init__()
        self._database = database

    async def refresh(self) -> None:
        """Read the classes again, because another scheduler may have changed them."""
        await self.find(FindPriorities())

    async def find(self, question: FindPriorities) -> PrioritiesFound:
        """Return all classes, and remember them by value."""
        async with self._database.read() as tx:
            classes = [_decode(row["spec"]) for row in await _FIND(tx)]
        self.by_value = {each.value: each for each in classes}
        return PrioritiesFound(classes=tuple(classes))

    async def edit(self, order: PriorityEditRequested) -> PriorityEditAnswered:
        """Create, replace or delete a class; refuse a second class of one value."""
        edit = order.edit
        name = edit.priority.name if isinstance(edit, SetPriority) else edit.name
        try:
            async with self._database.write() as tx:
                before = await _DELETE(tx, called=name)
                if isinstance(edit, SetPriority):
                    spec, value = _encode(edit.priority).decode(), edit.priority.value
                    await _INSERT(tx, called=name, priority=value, spec=spec)
        except IntegrityError:
            assert isinstance(edit, SetPriority)
            return PriorityEditAnswered(result=Taken(what="priority", value=str(edit.priority.value)))
        await self.refresh()
        if isinstance(edit, SetPriority):
            return PriorityEditAnswered(result=PriorityEdited(priority=edit.priority))
        if not before:
            return PriorityEditAnswered(result=Missing(what="priority class", names=(name,)))
        return PriorityEditAnswered(result=PriorityEdited(priority=_decode(before[0]["spec"])))
