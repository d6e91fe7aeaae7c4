"""The control room according to the settings: its queries, access control and address.

The HTTP server and the pages are imported when it runs: its table alone needs none of them.
"""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from berth.settings import BadSetting, Settings
from bus.delivery.runner import Bus
from bus.worker import Worker
from control_room.access import AccessRules, Credential, Sessions, Visitor, sweep
from control_room.cloud_status import StatusReader
from control_room.operations import Drains, MetalOperations, Operations
from control_room.queries import Queries
from control_room.shared_data import background_tasks
from control_room.worker import Events, control_room

if TYPE_CHECKING:
    from berth.control_room_queues import AgentQueues, QueuesOf
    from placement_worker.http.auth import Identity

MOST_NAME = 255  # characters of a user name without a token file
SHOW, ACT = "berth:control_room:show", "berth:control_room:act"


def operators_page(
    settings: Settings, bus: Bus, queues_of: "QueuesOf", agent_queues: "AgentQueues"
) -> Worker:
    """Return the worker of the control room; wiring gives it the tables of all workers."""
    events = Events(bus.clock)

    async def serve() -> None:
        from berth.control_room_operations import drains_here
        from bus.http import HttpLimits, listen, serve
        from control_room.pages.app import pages_app
        from control_room.pages.frame import PageContext

        queries, sessions = Queries(bus), Sessions()
        async with drains_here(bus) as drains, background_tasks(bus.clock) as tasks:
            context = PageContext(
                queries=queries,
                events=events,
                status=StatusReader(queries, tasks, settings.cell_names),
                access=access(settings),
                sessions=sessions,
                clock=bus.clock,
                operations=operations(bus, settings, drains, queues_of, agent_queues),
                tasks=tasks,
            )
            tasks.start(sweep(sessions, bus.clock))
            app = pages_app(context)
            await serve(
                app,
                listen(settings.control_room.http),
                limits=HttpLimits(connections=500),
                drain=settings.process.drain,
                closing=sessions.close,
            )

    return control_room(events, [serve])


def operations(
    bus: Bus, settings: Settings, drains: Drains, queues_of: "QueuesOf", agent_queues: "AgentQueues"
) -> Operations:
    """Return the operations that the pages share with the commands."""
    from berth.control_room_metal import metal, placement_heard
    from berth.control_room_operations import ControlRoomActions, asked_for
    from berth.control_room_queues import bus_operations
    from berth.operations.boot_options import recorded_request
    from scheduler_worker import replay, scores_of

    acts = ControlRoomActions(bus)
    return Operations(
        mark_host=acts.mark_host,
        end_wait=acts.end_wait,
        steer=acts.steer,
        drains=drains,
        metal=MetalOperations(read=partial(metal, settings, bus), changes=partial(placement_heard, bus)),
        scores=scores_of,
        replay=lambda build, record: replay(build, record).host,
        requested=recorded_request,
        what_if_request=lambda said: asked_for(bus, said),
        bus=bus_operations(settings, bus, queues_of, agent_queues),
    )


def access(settings: Settings) -> AccessRules:
    """Return the tokens and the policy of the Placement API.

    Without a token file every client may read, and any name is accepted at sign-in, as in that API.
    """
    from placement_worker.http import auth, policy

    door = settings.placement
    try:
        tokens = auth.TokenFile(Path(door.tokens)) if door.auth == "tokens" else None
        own = policy.load(Path(door.policy)) if door.policy else {}
        rules = policy.AccessPolicy(own, enforce_new_defaults=door.enforce_new_defaults)
    except (auth.BadTokens, policy.BadPolicy) as problem:
        raise BadSetting(str(problem)) from None
    is_open = tokens is None

    def credential(token: str) -> Credential:
        if tokens is None:
            named = _visitor(auth.noauth2({"x-auth-token": token[:MOST_NAME]}))
            return lambda: named
        # the digest, not the token, stays in memory as long as the session
        digest = auth.digest_of(token)
        return lambda: _visitor(tokens.holder(digest))

    def allows(rule: str, visitor: Visitor | None) -> bool:
        if visitor is None:
            return False
        who = auth.Identity(visitor.user, visitor.project, visitor.roles)
        return rules.allows(rule, who, {"project_id": visitor.project})

    return AccessRules(
        credential=credential,
        may_read=lambda visitor: is_open or allows(SHOW, visitor),
        may_act=lambda visitor: allows(ACT, visitor),
        names=frozenset(settings.control_room.names),
    )


def _visitor(found: "Identity | None") -> Visitor | None:
    """Return None also for a name with control characters: it is written to the log."""
    if found is None or not found.user.isprintable():
        return None
    return Visitor(found.user, found.project, found.roles)
