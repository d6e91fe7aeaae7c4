"""Commands of operators about agents that share nodes: list, enable, disable, rehome."""

from bus.leases import AgentEditAnswered, AgentEditRequested, AgentsFound, AgentStands, FindAgents
from bus.sql.failures import retrying
from cell_conductor import ring_store as store
from cell_conductor.core.ring import RingMember, rehomed
from cell_conductor.ring import Ring


class RingCommands:
    """Stores the change, then lets the ring deal the nodes as always."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._edit = retrying(ring.clock, otherwise=_not_edited)(self._edit_once)

    async def find(self, question: FindAgents) -> AgentsFound:
        found = []
        nodes = 0
        async with self._ring.database.read() as tx:
            members = await store.members(tx)
            for pool in sorted({member.pool for member in members}):
                in_pool, uses = await store.nodes(tx, pool), await store.uses(tx, pool)
                nodes += len(in_pool)
                for member in members:
                    if member.pool != pool:
                        continue
                    mine = [node for node in in_pool if node.owner == member.agent]
                    occupied = sum(node.root in uses for node in mine)
                    found.append(
                        AgentStands(
                            agent=member.agent,
                            pool=pool,
                            alive=member.alive,
                            disabled=member.disabled,
                            epoch=member.epoch,
                            lease=member.lease,
                            heard=member.heard,
                            free=len(mine) - occupied,
                            occupied=occupied,
                            leaving=sum(bool(node.leaving) for node in mine),
                        )
                    )
        return AgentsFound(agents=tuple(found), nodes=nodes)

    async def edit(self, request: AgentEditRequested) -> AgentEditAnswered:
        answer = await self._edit(request)
        if answer.refused:
            return answer
        async with self._ring.database.read() as tx:
            pool = next(member.pool for member in await store.members(tx) if member.agent == request.agent)
            before = {node.root: node for node in await store.nodes(tx, pool)}
        await self._ring.settle(pool)
        async with self._ring.database.read() as tx:
            after = {node.root: node for node in await store.nodes(tx, pool)}
        mine = [root for root, node in before.items() if node.owner == request.agent]
        moved = sum(root in after and after[root].owner != request.agent for root in mine)
        waiting = sum(root in after and after[root].leaving in ("free", "all") for root in mine)
        return AgentEditAnswered(moved=moved, waiting=waiting)

    async def _edit_once(self, request: AgentEditRequested) -> AgentEditAnswered:
        async with self._ring.database.write() as tx:
            members = {member.agent: member for member in await store.members(tx)}
            if why := _refused(request, members):
                return AgentEditAnswered(refused=why)
            member = members[request.agent]
            if request.edit != "rehome":
                await store.disable(tx, member.agent, request.edit == "disable")
                return AgentEditAnswered()
            version = await store.lock(tx, member.pool)
            mine = {
                node.root: node for node in await store.nodes(tx, member.pool) if node.owner == member.agent
            }
            if strange := sorted(set(request.nodes) - mine.keys()):
                return AgentEditAnswered(refused=f"{strange[0]} is no node of {member.agent}'s")
            chosen = [mine[root] for root in request.nodes] if request.nodes else list(mine.values())
            leaving = rehomed((node for node in chosen if node.leaving != "gone"), request.to)
            await store.save(tx, member.pool, version, leaving)
        return AgentEditAnswered()


def _refused(request: AgentEditRequested, members: dict[str, RingMember]) -> str:
    """Return why this is impossible, or an empty string."""
    member = members.get(request.agent)
    if member is None:
        known = ", ".join(sorted(members)) or "none"
        return f"no agent {request.agent!r} shares nodes in this cell; there are: {known}"
    if request.edit != "rehome":
        return ""
    if member.takes and not request.nodes:
        return f"{member.agent} is there and gets free nodes, also those it gives away: disable it first"
    others = [one for one in members.values() if one.takes and one.pool == member.pool and one is not member]
    if not request.to:
        return "" if others else f"no other agent is there to act for {member.pool}"
    to = members.get(request.to)
    if to is None or to.pool != member.pool:
        return f"there is no agent {request.to!r} that acts for {member.pool}"
    if to is member:
        return f"{member.agent} has them"
    return "" if to.alive else f"{to.agent} is not there: its lease is over"


def _not_edited(request: AgentEditRequested) -> AgentEditAnswered:
    return AgentEditAnswered(refused="others change it all the time: try again")
