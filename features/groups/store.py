"""Stores server groups: creates, deletes and reads them with their members, and locks them during a claim.

A consumer's row has its group; its allocations give its hosts. Claims lock the groups of hard policies after
the consumers and before the providers, and then read the hosts of the members: of two concurrent claims for a
group the second sees the first. A release locks no group: the removal of a member violates no policy, and the
member's holder consumer is written in the same commit.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import structs

from bus.claims import HOLDER_TYPES, ConsumerClaim
from bus.reports import SHARES
from bus.sql.statement import Transaction, in_turn, sql
from bus.vocabulary import MAX_INT, Contended, InUse, LimitReached, Taken
from features.groups import messages
from features.groups.constraints import NO_TOPOLOGY, DomainConstraints
from features.groups.messages import FindGroups, GroupClaim, ServerGroup
from features.groups.places import HARD, GroupPlaces
from features.groups.settings import GroupSettings
from placement_worker.extension import IS_SHARING, PlacementOperations, again, labels_of, roots_of

_COLUMNS = "g.id, g.uuid, g.name, g.project, g.policy, g.max_per_host, g.topology"
_IS_HARD = f"(g.policy IN ({', '.join(repr(policy) for policy in HARD)}) OR g.topology_required)"
# Groups with a soft policy are not locked, because they refuse no claim. A group that is deleted while this
# statement waits for its lock counts as missing.
_LOCK = sql(f"""
    WITH known AS (SELECT s.* FROM {{n: uuid str, id int}} JOIN server_groups s ON s.uuid = n.uuid
    UNION SELECT s.* FROM {{n}} JOIN server_groups s ON s.id = n.id),
    held AS (SELECT g.id FROM server_groups g WHERE g.id IN (SELECT k.id FROM known k)
    AND {_IS_HARD} ORDER BY g.id FOR UPDATE OF g)
    SELECT {_COLUMNS} FROM known g WHERE NOT {_IS_HARD} OR g.id IN (SELECT h.id FROM held h)
""")
_PLACES = sql(f"""
    SELECT DISTINCT c.group_id, c.uuid, c.keeps_for, r.uuid AS root, {IS_SHARING} AS shares, k.name AS type
    FROM {{n: id int}} JOIN consumers c ON c.group_id = n.id
    JOIN allocations a ON a.consumer_id = c.id
    JOIN resource_providers p ON p.id = a.resource_provider_id
    JOIN resource_providers r ON r.id = p.root_provider_id
    LEFT JOIN consumer_types k ON k.id = c.consumer_type_id
""")
_COUNT = sql("""
    SELECT count(*) AS total, count(CASE WHEN g.project = CAST(:project AS text) THEN 1 END) AS of_project,
        count(CASE WHEN g.uuid = CAST(:uuid AS text) THEN 1 END) AS stored
    FROM server_groups g WHERE NOT g.of_request
""")
JOIN = sql("""
    UPDATE consumers SET group_id = n.joined FROM {n: id int, joined int} WHERE consumers.id = n.id
""")

_FIND = f"SELECT {_COLUMNS} FROM server_groups g WHERE g.uuid > :after"
_FIND_ALL = sql(f"""
    {_FIND} AND NOT g.of_request AND (CAST(:project AS text) = '' OR g.project = CAST(:project AS text))
    AND (CAST(:called AS text) = '' OR g.name = CAST(:called AS text)) ORDER BY g.uuid LIMIT :most
""")
_FIND_THESE = sql(f"{_FIND} AND g.uuid IN (SELECT n.uuid FROM {{n: uuid str}}) ORDER BY g.uuid LIMIT :most")
_FIND_OF = sql(f"""
    {_FIND} AND g.id IN (SELECT c.group_id FROM {{n: uuid str}} JOIN consumers c ON c.uuid = n.uuid)
    ORDER BY g.uuid LIMIT :most
""")
_FIND_HARD = sql(f"SELECT {_COLUMNS} FROM server_groups g WHERE {_IS_HARD} ORDER BY g.uuid")
_MAKE = sql("""
    INSERT INTO server_groups (uuid, name, project, policy, max_per_host, topology, topology_required,
    of_request, created_at, updated_at)
    SELECT n.uuid, n.called, n.project, n.policy, n.most, n.topology, n.required, false, :NOW, :NOW
    FROM {n: uuid str, called str, project str, policy str, most int, topology str, required bool}
    WHERE true ON CONFLICT DO NOTHING RETURNING id
""")
# Renew the time of existing groups, so that PRUNE_OF_REQUESTS does not delete them before their claims.
_RENEW_OF_REQUEST = sql("""
    UPDATE server_groups SET updated_at = :NOW WHERE id IN (
    SELECT g.id FROM {n: uuid str} JOIN server_groups g ON g.uuid = n.uuid ORDER BY g.uuid FOR UPDATE OF g)
    RETURNING uuid
""")
# No conflict target: of two transactions that insert the same group at once, PostgreSQL can find the
# duplicate name before the duplicate uuid.
_MAKE_OF_REQUEST = sql("""
    INSERT INTO server_groups (uuid, name, project, policy, max_per_host, topology, topology_required,
    of_request, created_at, updated_at)
    SELECT n.uuid, n.uuid, n.project, 'topology', 1, n.topology, n.required, true, :NOW, :NOW
    FROM {n: uuid str, project str, topology str, required bool} WHERE true ORDER BY n.uuid
    ON CONFLICT DO NOTHING
""")
PRUNE_OF_REQUESTS = sql("""
    DELETE FROM server_groups WHERE of_request AND updated_at < :before
    AND NOT EXISTS (SELECT 1 FROM consumers c WHERE c.group_id = server_groups.id)
""")
_LOCK_ONE = sql("SELECT g.id FROM server_groups g WHERE g.uuid = :uuid FOR UPDATE OF g")
_MEMBERS = sql(f"""
    SELECT c.uuid FROM consumers c LEFT JOIN consumer_types k ON k.id = c.consumer_type_id
    WHERE c.group_id = :id AND COALESCE(k.name, '') NOT IN ({", ".join(map(repr, HOLDER_TYPES))})
    ORDER BY c.uuid LIMIT :most
""")
_DROP = sql("DELETE FROM server_groups WHERE id = :id")

decode_topology = msgspec.json.Decoder(DomainConstraints).decode

SOME = 20  # maximum number of members that a refusal names


async def lock(tx: Transaction, named: Collection[str], joined: Collection[int]) -> list[GroupPlaces]:
    """Lock and return server groups, given by uuid (`named`) and by database id (`joined`), without their
    members.
    """
    wanted = [*((uuid, None) for uuid in named), *((None, number) for number in joined)]
    return [_group(row) for row in await _LOCK(tx, wanted)]


async def read_places(tx: Transaction, groups: Iterable[GroupPlaces]) -> None:
    """Read the hosts of the members of server groups."""
    by_id = {group.id: group for group in groups}
    if not by_id:
        return
    found: dict[tuple[int, str, str | None], list[tuple[str, bool]]] = defaultdict(list)
    for row in await _PLACES(tx, [(id_,) for id_ in by_id], shares=SHARES):
        # `keeps_for` is empty if a process of the previous version wrote the holder consumer.
        keeps_for = (row["keeps_for"] or row["uuid"]) if row["type"] in HOLDER_TYPES else None
        found[row["group_id"], row["uuid"], keeps_for].append((row["root"], bool(row["shares"])))
    for (number, consumer, keeps_for), places in found.items():
        by_id[number].put(consumer, roots_of(places), keeps_for)


async def count_groups(tx: Transaction, group: ServerGroup) -> tuple[int, int, bool]:
    """Return the number of all server groups, of those of the project of `group`, and whether it exists. The
    numbers stay true until the end of the transaction.
    """
    await in_turn(tx, "server_groups")
    [row] = await _COUNT(tx, project=group.project, uuid=group.id)
    return row["total"], row["of_project"], bool(row["stored"])


async def find_groups(tx: Transaction, query: FindGroups) -> list[ServerGroup]:
    """Return the groups that match a query, in pages."""
    after, most, members, ids = query.after, query.limit or MAX_INT, query.members, query.ids
    if ids or members:
        statement = _FIND_OF if members else _FIND_THESE
        rows = await statement(tx, [(uuid,) for uuid in members or ids], after=after, most=MAX_INT)
        rows = [
            row
            for row in rows
            if query.project in ("", row["project"])
            and query.name in ("", row["name"])
            and (not ids or row["uuid"] in ids)
        ][:most]
    else:
        rows = await _FIND_ALL(tx, project=query.project, called=query.name, after=after, most=most)
    groups = [_group(row) for row in rows]
    await read_places(tx, groups)
    return [_server_group(group) for group in groups]


def _server_group(group: GroupPlaces) -> ServerGroup:
    places = {consumer: tuple(sorted(roots)) for consumer, roots in sorted(group.places.items())}
    holders = group.holder_consumers
    return ServerGroup(
        id=group.uuid,
        name=group.name,
        project=group.project,
        policy=group.policy,
        max_per_host=group.max_per_host,
        topology=group.topology,
        members={member: roots for member, roots in places.items() if member not in holders},
        left={holder: roots for holder, roots in places.items() if holder in holders},
    )


async def hard(tx: Transaction) -> list[GroupPlaces]:
    """Return the server groups with a hard policy or a required topology, with their members' hosts."""
    groups = [_group(row) for row in await _FIND_HARD(tx)]
    await read_places(tx, groups)
    await read_labels(tx, groups)
    return groups


async def read_labels(tx: Transaction, groups: Iterable[GroupPlaces], roots: Iterable[str] = ()) -> None:
    """Read the labels of the members' hosts and of the given roots into each group with a required topology,
    because claims are checked against them.
    """
    checked = [group for group in groups if group.topology.is_required]
    if checked:
        places = {root for group in checked for on in group.places.values() for root in on}
        labels = await labels_of(tx, places.union(roots))
        for group in checked:
            group.labels = labels


def _group(row: Any) -> GroupPlaces:
    id_, uuid, name, project, policy, most, topology = row
    limits = decode_topology(topology) if topology else NO_TOPOLOGY
    return GroupPlaces(id_, uuid, name, project, policy, most, limits)


async def make_of_requests(tx: Transaction, claims: Iterable[ConsumerClaim], now: float) -> None:
    """Create the server groups that requests with a topology name, if they do not exist yet."""
    rows = {
        part.group: (part.group, each.project, _encoded(part.topology), part.topology.is_required)
        for each in claims
        if (part := each.parts.get(GroupClaim)) is not None and part.topology is not None
    }
    if rows:
        renewed = {uuid for (uuid,) in await _RENEW_OF_REQUEST(tx, [(uuid,) for uuid in rows], now=now)}
        if missing := [row for uuid, row in rows.items() if uuid not in renewed]:
            await _MAKE_OF_REQUEST(tx, missing, now=now)


def _encoded(topology: DomainConstraints) -> str:
    return msgspec.json.encode(topology).decode() if topology.levels else ""


async def make_group(tx: Transaction, group: ServerGroup, now: float) -> bool:
    """Create a server group; return False if its id, or its name within its project, is in use."""
    topology = _encoded(group.topology), group.topology.is_required
    row = (group.id, group.name, group.project, group.policy, group.max_per_host, *topology)
    return bool(await _MAKE(tx, [row], now=now))


async def drop_group(tx: Transaction, id_: str, *, force: bool) -> list[str] | None:
    """Delete a server group and return []; return None if there is no such group. If the group has members,
    and `force` is not set, return some of the members and do not delete the group.
    """
    rows = await _LOCK_ONE(tx, uuid=id_)
    if not rows:
        return None
    [(number,)] = rows
    members = [] if force else [uuid for (uuid,) in await _MEMBERS(tx, id=number, most=SOME)]
    if not members:
        await _DROP(tx, id=number)
    return members


# Operations on server groups.


@dataclass(eq=False)
class ServerGroups(PlacementOperations):
    """Operations on server groups. The groups' policies are checked by claims."""

    limits: GroupSettings

    async def prune(self, before: float) -> None:
        """Delete the groups of requests with a topology that have no members any more."""
        async with self.database.write() as tx:
            await PRUNE_OF_REQUESTS(tx, before=before)

    async def find(self, query: messages.FindGroups) -> messages.GroupsFound:
        async with self.database.read() as tx:
            return messages.GroupsFound(groups=tuple(await find_groups(tx, query)))

    @again(lambda *_: messages.GroupEditAnswered(result=Contended()))
    async def edit(self, order: messages.GroupEditRequested) -> messages.GroupEditAnswered:
        match order.edit:
            case messages.MakeGroup() as make:
                result = await self._make(make)
            case messages.DropGroup(group=group, force=force):
                async with self.database.write() as tx:
                    members = await drop_group(tx, group, force=force)
                result = messages.GroupEdited(changed=members is not None)
                if members:
                    result = InUse(what=group, members=tuple(members))
        return messages.GroupEditAnswered(result=result)

    async def _make(self, make: messages.MakeGroup) -> messages.GroupResult:
        fields = structs.asdict(make)
        group = messages.ServerGroup(id=fields.pop("group"), **fields)
        async with self.database.write() as tx:
            if (full := await self._limit_reached(tx, group)) is not None:
                return full
            if await make_group(tx, group, self.clock.now()):
                return messages.GroupEdited(group=group, changed=True)
        [existing] = (await self.find(messages.FindGroups(ids=(make.group,)))).groups or [None]
        if existing is None:
            return Taken(what="name", value=make.name)
        if structs.replace(existing, members={}, left={}) == group:
            return messages.GroupEdited(group=existing)
        return Taken(what="id", value=make.group)

    async def _limit_reached(self, tx: Transaction, group: messages.ServerGroup) -> LimitReached | None:
        limits = self.limits
        total, of_project, is_stored = await count_groups(tx, group)
        if is_stored:
            return None
        if total >= limits.groups:
            return LimitReached(setting="max_groups", limit=limits.groups, what="server groups")
        if of_project >= limits.groups_project:
            what = f"server groups of project {group.project}"
            return LimitReached(setting="max_groups_project", limit=limits.groups_project, what=what)
        return None
