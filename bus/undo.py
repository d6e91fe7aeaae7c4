"""Rules by which acts are undone: the requests that bring back the state from before a recorded act."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import structs

from bus import topics
from bus.aggregates import AggregateEditRequested, ChangeAggregate, DropAggregate, MakeAggregate
from bus.cells import CellEditRequested, RegisterCell, RegisteredCell
from bus.domains import LabelEditRequested
from bus.parts import builtins_of
from bus.removed_agents import AgentEditRequested
from bus.resources import EditRequested, ProvidersFound, SetTraits
from bus.topics import Query
from bus.vocabulary import Message


class NotUndoable(ValueError):
    """A recorded act that cannot be undone; its text says why, and what to do instead."""


@dataclass(frozen=True)
class Past:
    """The parts of the target's state that an act changed, as the audit trail stores them; its state now."""

    before: Mapping[str, Any]
    after: Mapping[str, Any]
    now: Message | None = None  # None: the kind of act has no state that is recorded

    def item(self, name: str, key: str, value: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the item of the list `name` whose field `key` has this value, as it was before the act and
        after it; {} if there was none.

        Where the list had one item both times, the record has only the differing fields: the others are taken
        from the item as it is now.
        """
        first, second = (_items(part.get(name)) for part in (self.before, self.after))
        if len(first) == len(second) == 1 and key not in {**first[0], **second[0]}:
            present = _having(_items(builtins_of(getattr(self.now, name, ()))), key, value)
            common = {field: kept for field, kept in present.items() if field not in second[0]}
            return {**common, **first[0]}, {**common, **second[0]}
        return _having(first, key, value), _having(second, key, value)


def _items(value: Any) -> list[dict[str, Any]]:
    return [item for item in value or () if isinstance(item, dict)]


def _having(items: Sequence[dict[str, Any]], key: str, value: str) -> dict[str, Any]:
    return next((item for item in items if item.get(key) == value), {})


@dataclass(frozen=True)
class UndoRule:
    """The rule by which acts of one type of request are undone: by requests to one query."""

    query: Query[Any, Any]
    # returns the requests that undo a request; raises NotUndoable
    requests: Callable[[Any, Past], Sequence[Message]]


def _marks(asked: EditRequested, past: Past) -> Sequence[Message]:
    if not isinstance(edit := asked.edit, SetTraits) or not isinstance(past.now, ProvidersFound):
        raise NotUndoable("only changes of the state and traits of hosts can be undone")
    found = next((each for each in past.now.providers if each.id == edit.provider), None)
    if found is None:
        raise NotUndoable("the host is gone")
    before, after = past.item("providers", "id", edit.provider)
    removed, added = {*before.get("traits", ())}, {*after.get("traits", ())}
    traits = tuple(sorted({*found.traits} - added | removed))
    undone = SetTraits(provider=edit.provider, traits=traits, generation=found.generation, cell=edit.cell)
    return (EditRequested(edit=undone),)


def _labels(asked: LabelEditRequested, past: Past) -> Sequence[Message]:
    levels = {*asked.set, *asked.unset}
    edits = []
    for root in asked.roots:
        before, after = past.item("providers", "id", root)
        was, became = before.get("labels") or {}, after.get("labels") or {}
        changed = {level for level in levels if was.get(level) != became.get(level)}
        if changed:
            edits.append(
                structs.replace(
                    asked,
                    roots=(root,),
                    set={level: was[level] for level in changed if level in was},
                    unset=tuple(sorted(changed - was.keys())),
                )
            )
    return edits


def _cell(asked: CellEditRequested, past: Past) -> Sequence[Message]:
    if not isinstance(edit := asked.edit, RegisterCell):
        raise NotUndoable(f"`berth cell create {edit.cell}` creates the cell anew")
    before, after = past.item("cells", "name", edit.cell)
    if after and not before and edit.enabled is not False:
        raise NotUndoable(f"`berth cell delete {edit.cell}` removes the cell with its users")
    was = RegisteredCell(
        name=edit.cell, **{name: before[name] for name in ("enabled", "note") if name in before}
    )
    return (CellEditRequested(edit=RegisterCell(cell=edit.cell, enabled=was.enabled, note=was.note)),)


def _aggregate(asked: AggregateEditRequested, past: Past) -> Sequence[Message]:
    edit = asked.edit
    id_ = edit.aggregate
    before, after = past.item("aggregates", "id", id_)
    hosts_before, hosts_after = ((part.get("hosts") or {}).get(id_, 0) for part in (past.before, past.after))
    match edit:
        case MakeAggregate() if not before:
            return (AggregateEditRequested(edit=DropAggregate(aggregate=id_, force=bool(edit.hosts))),)
        case MakeAggregate():
            raise NotUndoable("the aggregate existed before; `berth resource aggregate set` changes it")
        case DropAggregate():
            if hosts_before:
                raise NotUndoable(f"its {hosts_before} hosts are not recorded")
            made = MakeAggregate(aggregate=id_, name=before["name"], metadata=before.get("metadata") or {})
            return (AggregateEditRequested(edit=made),)
        case ChangeAggregate():
            if abs(hosts_after - hosts_before) != len(edit.add) + len(edit.remove):
                raise NotUndoable("the record does not tell which of the hosts were in it before")
            was, became = (item.get("metadata") or {} for item in (before, after))
            undone = ChangeAggregate(
                aggregate=id_,
                name=before.get("name") if edit.name is not None else None,
                set={key: value for key, value in was.items() if became.get(key) != value},
                unset=tuple(sorted(became.keys() - was.keys())),
                add=edit.remove,
                remove=edit.add,
            )
            return (AggregateEditRequested(edit=undone),)


def _agent(asked: AgentEditRequested, past: Past) -> Sequence[Message]:
    return (structs.replace(asked, edit="restore" if asked.edit == "remove" else "remove"),)


MARKS = UndoRule(topics.EDIT, _marks)
LABELS = UndoRule(topics.EDIT_LABELS, _labels)
CELL = UndoRule(topics.EDIT_CELL, _cell)
AGGREGATE = UndoRule(topics.EDIT_AGGREGATE, _aggregate)
AGENT = UndoRule(topics.EDIT_AGENT, _agent)
