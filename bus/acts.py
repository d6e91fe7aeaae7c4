"""The table of acts: every message by which berth is changed, and the role that may send it.

Every interface uses this table: `judged` decides about operators, `permitted` about members of projects, and
`describe` names the target in the audit trail.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import structs

from bus import topics
from bus.aggregates import AggregateEdited, AggregateEditRequested, FindAggregates
from bus.audit_trail import ActRecord, Operator, Role
from bus.cells import CellEdited, CellEditRequested, FindCells
from bus.claims import Released, ReleaseRequested
from bus.domains import LabelEditRequested, LabelsEdited
from bus.messages import BuildCancelRequested, BuildDeleteRequested, BuildRequested
from bus.named_objects import NamedObject, named_objects
from bus.names import MakeName, NameEdited
from bus.parts import builtins_of, encoder
from bus.projects import (
    DERIVED,
    UNKNOWN,
    FindProjects,
    NotAllowed,
    ProjectMember,
    ProjectsFound,
    check_filtered,
    is_derived,
    is_of,
    project_of,
)
from bus.removed_agents import AgentEditRequested
from bus.resources import (
    Edited,
    EditRequested,
    FindAllocations,
    FindProviders,
    OwnerEditRequested,
    OwnerGiven,
    ProvidersFound,
    Reshape,
    SetTraits,
)
from bus.topics import Query
from bus.undo import AGENT, AGGREGATE, CELL, LABELS, MARKS, NotUndoable, UndoRule
from bus.vocabulary import UNSAID_ID, Id, Message, cause_of

MAX_NAME = 255  # characters
RANK: Mapping[str, int] = {"": 0, "reader": 1, "operator": 2, "admin": 3}


Limit = Literal["cells", "projects"]
M = TypeVar("M", bound=Message)


@dataclass(frozen=True)
class Act:
    """A row of the table of acts: its name and meaning, the lowest role that may do it, and the messages that
    request it.

    An operator whose role is limited to cells may do the act on every target if `open_to` contains `cells`;
    only on targets in the operator's cells if `limited_by` contains `cells`; else on no target. A limit to
    `projects` is checked in the same way. `edits`: the act is requested only by messages with a field `edit`
    of one of these types.
    """

    name: str
    role: Role
    says: str
    messages: tuple[type[Message], ...] = ()
    edits: tuple[type[Any], ...] = ()
    limited_by: tuple[Limit, ...] = ()
    open_to: tuple[Limit, ...] = ()


def sent(*ways: Any) -> tuple[type[Message], ...]:
    """Return the message types that these topics and queries carry."""
    return tuple(way.asks if isinstance(way, Query) else way.message for way in ways)


BOTH: tuple[Limit, ...] = ("cells", "projects")
READ = Act("read", "reader", "every query, page and report", limited_by=("projects",), open_to=("cells",))

# fmt: off
_KERNEL: tuple[Act, ...] = (
    READ,
    Act("boot", "operator", "build instances", (BuildRequested,), limited_by=("cells",)),
    Act("delete", "operator", "delete instances", sent(topics.BUILD_DELETE), limited_by=BOTH),
    Act("cancel", "operator", "cancel waiting requests", sent(topics.BUILD_CANCEL)),
    Act("mark host", "operator", "enable, disable or force down a host, and set its traits",
        sent(topics.EDIT), (SetTraits,), limited_by=("cells",)),
    Act("make name", "operator", "create a trait or resource class", sent(topics.EDIT_NAME), (MakeName,),
        open_to=BOTH),
    Act("label hosts", "operator", "set labels of hosts, such as the rack", sent(topics.EDIT_LABELS),
        limited_by=("cells",)),
    Act("agent", "operator", "remove or restore an agent", sent(topics.EDIT_AGENT),
        limited_by=("cells",)),
    Act("aggregate", "operator", "aggregates with their metadata and hosts", sent(topics.EDIT_AGGREGATE)),
    Act("dead letters", "operator", "replay or drop dead letters"),
    Act("edit provider", "admin", "providers, inventories and their aggregates", sent(topics.EDIT)),
    Act("edit name", "admin", "rename or delete traits and resource classes", sent(topics.EDIT_NAME)),
    Act("give host", "admin", "assign a host to another cell", sent(topics.EDIT_OWNER)),
    Act("cell", "admin", "register, enable, disable or delete a cell", sent(topics.EDIT_CELL)),
    Act("repair", "admin", "claim, release and destroy by hand, as `berth audit heal` does",
        sent(topics.CLAIM, topics.RELEASE, topics.AGENT_DESTROY)),
    Act("node event", "admin", "publish an event of a bare-metal node", sent(topics.IRONIC_NODE)),
    Act("credential", "admin", "create, rotate and revoke credentials"),
)
# fmt: on
ACTS: list[Act] = []  # filled by `add`
BY_NAME: dict[str, Act] = {}
_BY_MESSAGE: dict[type[Message], list[Act]] = {}


@dataclass(frozen=True)
class Target:
    """The object of an act, or several objects (`ids`). `cell` and `project` are empty if they are unknown
    or do not exist.
    """

    id: str = ""
    name: str = ""
    cell: str = ""
    project: str = ""
    ids: tuple[str, ...] = ()


State = tuple[Query[Any, Any], Message]
Ids = tuple[set[str], set[str]]


def _from_state(message: Any, target: Target, owners: ProjectsFound, state: Message | None) -> Target:
    unproven = replace(target, cell="", project="")
    return unproven if state is None else completed(unproven, state)


def as_named(message: Any, target: Target, owners: ProjectsFound, state: Message | None) -> Target:
    """Return the target as the message names it: the worker checks that before it acts."""
    return target


@dataclass(frozen=True, kw_only=True)
class Requested:
    """The treatment of a type of message: its checks for a limited role and for a member of projects, and
    its entry in the audit trail.
    """

    # returns the query that reads the state of the target; None: the audit trail does not record the state
    state: Callable[[Any], State | None] = lambda message: None
    # returns the target with its real cell and project (empty if unknown), from the target as the message
    # names it, the owners of ids, and the state
    real: Callable[[Any, Target, ProjectsFound, Message | None], Target] = _from_state
    # returns the message to send: bound to the place on which the role was judged
    bound: Callable[[Any, Target, ProjectsFound], Any] = lambda message, real, owners: message
    by_owner: bool = True  # the owner and place of the target decide, not the state
    # returns the request of a project's member with what berth adds to it, from the state, or raises
    # NotAllowed. The objects that the message names are checked before. None: only operators may send it
    member: Callable[[Any, ProjectMember, Message | None], Any] | None = None
    targets: tuple[str, ...] = ()  # fields that name the target, if they are not in the usual ones
    id: Callable[[Any], str] = lambda message: ""  # returns the target's id, if no field has it
    undo: UndoRule | None = None  # None: the acts cannot be undone


_REQUESTED: dict[type[Message], Requested] = {}
_DONE: list[type[Any]] = []
_USUAL = Requested()


def add(
    acts: Iterable[Act], requested: Mapping[type[Message], Requested], done: Iterable[type[Any]] = ()
) -> None:
    """Add the acts of a feature, how their messages are judged and recorded, and the results of edits that
    were carried out.
    """
    for act in acts:
        assert act.name not in BY_NAME, act.name
        ACTS.append(act)
        BY_NAME[act.name] = act
        for type_ in act.messages:
            _BY_MESSAGE.setdefault(type_, []).append(act)
    _REQUESTED.update(requested)
    _DONE.extend(done)


def _rules_of(message: Message) -> Requested:
    return _rules_of_type(type(message))


def _rules_of_type(type_: type[Message]) -> Requested:
    return _REQUESTED.get(type_, _USUAL)


def ids_of(messages: Iterable[Message]) -> Ids:
    """Return all ids in messages: those that messages give to new objects, such as a build request and its
    instances, and those of the existing builds and requests that they name.
    """
    new: set[str] = set()
    existing: set[str] = set()
    for message in messages:
        for named in named_objects(message):
            if named.is_new:
                new.add(named.id)
            elif named.kind.judged == "owner":
                existing.add(named.id)
    return new, existing


def act_of(message: Message) -> Act | None:
    """Return the kind of change that a message requests, for permissions and the audit trail, or None if the
    message is only a query.
    """
    edit = getattr(message, "edit", None)
    for act in _BY_MESSAGE.get(type(message), ()):
        if not act.edits or isinstance(edit, act.edits):
            return act
    return None


def has_role(operator: Operator, act: Act) -> bool:
    """Return whether the operator's role permits the act, before limits to cells or projects are judged."""
    return RANK[operator.role] >= RANK[act.role]


def allowed(operator: Operator, act: Act, target: Target) -> str:
    """Return "" if the operator may do this act on this target, or else the reason for the refusal."""
    if not has_role(operator, act):
        return f"{act.name} takes the role {act.role}; {operator.name} has {operator.role or 'no role'}"
    for limit, theirs, of_target in _limits(operator, target):
        if theirs and limit not in act.open_to and (limit not in act.limited_by or of_target not in theirs):
            only = f"{operator.name} may act in the {limit} {', '.join(theirs)} only"
            return f"{act.name}: {only}, and the target is in {of_target or 'no known one'}"
    return ""


def is_limited(operator: Operator) -> bool:
    """Return whether the operator may act only in some cells or projects."""
    return bool(operator.cells or operator.projects)


def judged(
    operator: Operator,
    message: M,
    owners: ProjectsFound,
    state: Message | None = None,
    member: ProjectMember | None = None,
) -> tuple[str, M]:
    """Return "" and the message to send if the operator may do its act, or else the reason for the refusal.
    What the role does not cover, the operator may do as a `member` of projects.

    A limited role is judged on the real project, cell and host of the target: on `owners`, the answer to the
    query `owners_query`, and on `state`, the answer to `state_query`. The message itself proves only what the
    workers check before they act: the constraints of a boot, and the cell to which the message is routed.
    A move is refused later if its instance has left the host on which the role was judged, and an edit of a
    host if the host has left the cell.
    """
    why, bound = _by_role(operator, message, owners, state)
    if not why or member is None or _rules_of(message).member is None:
        return why, bound
    try:
        return "", permitted(member, message, owners, state)
    except NotAllowed as problem:
        return str(problem), message


def _by_role(operator: Operator, message: M, owners: ProjectsFound, state: Message | None) -> tuple[str, M]:
    act = act_of(message)
    assert act is not None
    target = describe(message)
    if not is_limited(operator) or not has_role(operator, act):
        return allowed(operator, act, target), message
    rules = _rules_of(message)
    real = rules.real(message, target, owners, state)
    if why := allowed(operator, act, real):
        return why, message

    def is_own(id_: Id) -> bool:
        place = owners.places.get(id_)
        of_id = Target(id_, cell=place.cell if place else "", project=owners.projects[id_])
        return not allowed(operator, act, of_id)

    named = named_objects(message)
    why = _unreadable(operator, named, owners) if rules.by_owner else ""
    why = why or _unusable(_new(named), owners, is_own)
    return why, message if why else rules.bound(message, real, owners)


def _unreadable(operator: Operator, named: Iterable[NamedObject], owners: ProjectsFound) -> str:
    """Return why an operator may not name one of these objects, or "": the operator may not read the project
    of an instance.
    """
    for each in named:
        if each.kind.judged == "owner" and not each.is_new:
            target = Target(each.id, project=owners.projects.get(each.id, ""))
            if why := allowed(operator, READ, target):
                return f"{each.path}: {why}"
    return ""


def permitted(member: ProjectMember, message: M, owners: ProjectsFound, state: Message | None = None) -> M:
    """Return the request of a member of projects with what berth adds to it, such as the project. Raise
    NotAllowed if the member may not send it. `owners` and `state` as in `judged`.
    """
    rules = _rules_of(message)
    assert rules.member is not None
    named = named_objects(message)
    check_projects(member, named)
    if (unknown := _unowned(member, named, owners)) is not None:
        raise NotAllowed(f"{unknown.path}: {UNKNOWN}")
    if why := _unusable(_new(named), owners, lambda id_: is_of(member, owners.projects[id_])):
        raise NotAllowed(why)
    allowed_: M = rules.member(message, member, state)
    return allowed_


def check_projects(member: ProjectMember, named: Iterable[NamedObject]) -> None:
    """Raise NotAllowed if a project that a message names is not one of the member's."""
    for each in named:
        if each.kind.judged == "member" and each.id != UNSAID_ID and each.id not in member.projects:
            raise NotAllowed(f"{each.path}: {member.name} is not bound to {each.id}")


def _unowned(
    member: ProjectMember, named: Iterable[NamedObject], owners: ProjectsFound
) -> NamedObject | None:
    """Return the first existing instance or request that is not known as one of the member's projects."""
    for each in named:
        is_judged = each.kind.judged == "owner" and not each.is_new
        if is_judged and not is_of(member, owners.projects.get(each.id)):
            return each
    return None


def _new(named: Iterable[NamedObject]) -> set[Id]:
    return {each.id for each in named if each.is_new}


def _unusable(new: set[Id], owners: ProjectsFound, is_own: Callable[[Id], bool]) -> str:
    """Return why a caller may not give one of these ids to a new object, or "". An id in use may only be
    repeated by those whose it is.
    """
    if any(map(is_derived, new)):
        return DERIVED
    taken = (id_ for id_ in sorted(new & owners.projects.keys()) if not is_own(id_))
    return next((f"{id_} is in use by others: use new uuids" for id_ in taken), "")


def is_judged_by_owner(operator: Operator, message: Message, member: ProjectMember | None = None) -> bool:
    """Return whether the owners of the ids in a message decide if the caller may do its act."""
    act, limits = act_of(message), [limit for limit, theirs, _ in _limits(operator, Target()) if theirs]
    if act is None:
        return False
    if member is not None and (limits or not has_role(operator, act)):
        return True
    is_possible = bool(limits) and has_role(operator, act) and {*limits} <= {*act.limited_by}
    return is_possible and _rules_of(message).by_owner


def owners_query(messages: Iterable[Message], *, places: bool = True) -> FindProjects | None:
    """Return the query for the real owners, and the places, of the ids in messages; None if there are no
    ids.
    """
    new, existing = ids_of(messages)
    if not new and not existing:
        return None
    return FindProjects(new=tuple(sorted(new)), existing=tuple(sorted(existing)), places=places)


def deciding_state(message: Message, member: ProjectMember, owners: ProjectsFound) -> State | None:
    """Return the query that reads the state which decides about a member's message; None if the owners of
    its ids decide.
    """
    rules = _rules_of(message)
    if rules.by_owner or _unowned(member, named_objects(message), owners) is not None:
        return None
    return rules.state(message)


def _limits(operator: Operator, target: Target) -> tuple[tuple[Limit, Sequence[str], str], ...]:
    return ("cells", operator.cells, target.cell), ("projects", operator.projects, target.project)


def read_target(way: Query[Any, Any] | None, question: Message) -> Target:
    """Return the target on which permission for the query `question` is checked: its project if queries of
    the type `way` ask for the data of one project, else an empty Target.
    """
    return Target(project=str(getattr(question, "project", "")) if way in _OF_PROJECT else "")


_OF_PROJECT = (topics.USAGES, topics.FIND_INSTANCES, topics.REFUSED)


_TARGETS = (
    "build", "instances", "consumer", "claims", "provider", "root", "roots", "aggregate", "agent",
    "name", "node", "providers", "project", "cell",
)  # fmt: skip


def describe(message: Message) -> Target:
    """Return the target of a message's act, with the id, name, cell and project that the message contains."""
    parts = [getattr(message, name, None) for name in ("edit", "request")]
    records = [part for part in (*parts, message) if isinstance(part, msgspec.Struct)]
    rules = _rules_of(message)
    fields = rules.targets or _TARGETS
    values = [getattr(part, name) for name in fields for part in records if getattr(part, name, None)]
    id_, name, ids = names_of(values[0]) if values else ("", "", ())
    id_ = rules.id(message) or id_
    if values and isinstance(values[0], msgspec.Struct):
        records.insert(0, values[0])
    cell, project = (
        next((str(getattr(part, field)) for part in records if getattr(part, field, None)), "")
        for field in ("cell", "project")
    )
    if getattr(message, "to_cell", "") not in ("", cell):  # a move between two cells has no single cell
        cell = ""
    return Target(id_, name, cell, project, ids)


def names_of(value: Any) -> tuple[str, str, tuple[str, ...]]:
    """Return the id and name of an act's target, which is given as an id, an object or a tuple of several
    targets. For several targets, return the first one's id with `and N more`, its name, and all ids.
    """
    if isinstance(value, str):
        return value, "", ()
    if not isinstance(value, tuple):
        id_ = str(getattr(value, "id", "") or getattr(value, "consumer", ""))
        return id_, str(getattr(value, "name", "")), ()
    id_, name, _ = names_of(value[0])
    if len(value) == 1:
        return id_, name, ()
    return f"{id_} and {len(value) - 1} more", name, tuple([names_of(each)[0] for each in value])


def completed(target: Target, state: Message) -> Target:
    """Return the target with the name, cell and project in `state`, which is the answer to the query that
    `state_query` returned.
    """
    stored = next((value for value in structs.astuple(state) if isinstance(value, tuple) and value), ())
    found: dict[str, Any] = {}
    for field in ("name", "cell", "project"):
        values = {str(getattr(item, field, "") or "") for item in stored} - {""}
        found[field] = values.pop() if len(values) == 1 else "" if values else getattr(target, field)
    return replace(target, **found)


def state_query(message: Message) -> State | None:
    """Return the query that reads the state of a message's target, or None if the audit trail does not record
    the state of such targets.
    """
    return _rules_of(message).state(message)


def difference(before: Any, after: Any) -> tuple[str, str]:
    """Return two JSON texts: the parts of `before` and of `after` that differ between these two states. Lists
    are returned without the items that both states have.
    """
    first, second = _without_common(builtins_of(before), builtins_of(after))
    return _json(first), _json(second)


def state_json(state: Message) -> str:
    """Return the state of an act's target as the audit trail stores it."""
    return _json(builtins_of(state))


def _without_common(before: Any, after: Any) -> tuple[Any, Any]:
    if isinstance(before, dict) and isinstance(after, dict):
        keys = [
            key for key in {**before, **after} if before.get(key) != after.get(key) and key not in _COUNTERS
        ]
        pairs = {key: _without_common(before.get(key), after.get(key)) for key in keys}
        first = {key: former for key, (former, _) in pairs.items() if former is not None}
        return first, {key: new for key, (_, new) in pairs.items() if new is not None}
    if isinstance(before, list | tuple) and isinstance(after, list | tuple):
        if len(before) == len(after) == 1:
            former, new = _without_common(before[0], after[0])
            return [former], [new]
        return [item for item in before if item not in after], [item for item in after if item not in before]
    return before, after


_COUNTERS = ("generation", "resource_provider_generation", "updated", "seen", "used", "number")


def _json(value: Any) -> str:
    return cause_of(encoder().encode(value).decode()) if value else ""


def asked_json(message: Message) -> str:
    """Return a request as JSON, without the fields that only concern its delivery."""
    fields = builtins_of(message)
    return cause_of(_json({name: value for name, value in fields.items() if name != "reply_to"}))


def undoable(record: ActRecord) -> tuple[UndoRule, Message]:
    """Return how the act of a record is undone, and its request; raise NotUndoable."""
    if record.outcome != "done":
        raise NotUndoable(f"its outcome is {record.outcome}: it changed nothing that is known")
    act, is_cut = BY_NAME.get(record.act), False
    for type_ in act.messages if act is not None else ():
        undo = _rules_of_type(type_).undo
        if undo is not None:
            try:
                message = msgspec.json.decode(record.asked, type=type_)
            except msgspec.ValidationError:  # another type of this act
                continue
            except msgspec.DecodeError:
                is_cut = True
                continue
            if act_of(message) is not act:
                continue
            if state_query(message) is not None and not record.before and not record.after:
                raise NotUndoable("it changed nothing")
            return undo, message
    if is_cut:
        raise NotUndoable("its request was longer than the audit trail stores")
    raise NotUndoable(f"acts of the kind {record.act!r} are not undone by a command")


def is_undoable(record: ActRecord) -> bool:
    """Return whether `berth audit undo` undoes an act, if its target has not changed since."""
    try:
        undoable(record)
    except NotUndoable:
        return False
    return True


def refusal(answer: Message) -> str:
    """Return why an answer refuses its request; "" if the request was carried out."""
    result = getattr(answer, "result", None)
    if result is not None and not isinstance(result, tuple(_DONE)):
        return cause_of(_json(result))
    return str(getattr(answer, "refused", "") or "")


# The messages of the kernel


_CONTENTS: tuple[Literal["inventories", "traits", "aggregates"], ...] = (
    "inventories",
    "traits",
    "aggregates",
)


def _provider_state(message: EditRequested) -> State | None:
    if isinstance(message.edit, Reshape):
        return None
    return topics.PROVIDERS, FindProviders(ids=(message.edit.provider,), parts=(*_CONTENTS, "owner"))


def _labelled(
    message: LabelEditRequested, target: Target, owners: ProjectsFound, state: Message | None
) -> Target:
    found = state.providers if isinstance(state, ProvidersFound) else ()
    if {provider.id for provider in found} != {*message.roots}:
        return replace(target, cell="", project="")
    return _from_state(message, target, owners, state)


def _bound_traits(message: EditRequested, real: Target, owners: ProjectsFound) -> EditRequested:
    if not isinstance(message.edit, SetTraits):
        return message
    return structs.replace(message, edit=structs.replace(message.edit, cell=real.cell))


def _of_build(
    message: BuildDeleteRequested, target: Target, owners: ProjectsFound, state: Message | None
) -> Target:
    place = owners.places.get(message.build)
    cell = place.cell if place is not None and place.cell == message.cell else ""
    return replace(target, cell=cell, project=owners.projects.get(message.build, ""))


def _boot_of_member(request: BuildRequested, member: ProjectMember, state: Message | None) -> BuildRequested:
    project = project_of(member, request.project)
    check_filtered(request.forced_host)
    return structs.replace(request, project=project)


def allocations_of(consumer: str) -> State:
    """Return the query that reads the allocations of a consumer as the state of an act's target."""
    return topics.ALLOCATIONS, FindAllocations(consumers=(consumer,))


add(
    _KERNEL,
    {
        BuildRequested: Requested(real=as_named, member=_boot_of_member),
        BuildCancelRequested: Requested(
            member=lambda message, member, state: structs.replace(message, anywhere=True)
        ),
        BuildDeleteRequested: Requested(
            state=lambda message: allocations_of(message.build),
            real=_of_build,
            member=lambda message, member, state: message,
        ),
        EditRequested: Requested(state=_provider_state, bound=_bound_traits, undo=MARKS),
        LabelEditRequested: Requested(
            state=lambda message: (
                topics.PROVIDERS,
                FindProviders(ids=message.roots, parts=("labels", "owner")),
            ),
            real=_labelled,
            bound=lambda message, real, owners: structs.replace(message, cell=real.cell),
            undo=LABELS,
        ),
        OwnerEditRequested: Requested(
            state=lambda message: (topics.PROVIDERS, FindProviders(ids=(message.root,), parts=("owner",)))
        ),
        AggregateEditRequested: Requested(
            state=lambda message: (topics.AGGREGATES, FindAggregates(ids=(message.edit.aggregate,))),
            undo=AGGREGATE,
        ),
        CellEditRequested: Requested(
            state=lambda message: (topics.CELLS, FindCells(counted=False)), undo=CELL
        ),
        AgentEditRequested: Requested(real=as_named, undo=AGENT),
        ReleaseRequested: Requested(state=lambda message: allocations_of(message.consumer)),
    },
    (Edited, OwnerGiven, LabelsEdited, AggregateEdited, CellEdited, NameEdited, Released),
)
