"""Serves the REST API with the tokens, the policy and the certificate of the settings."""

import asyncio

from berth.placement_http import known_by, policy_of, tls_of, tokens_of
from berth.problems.reading import ProblemList, QueuesOf
from berth.rest.app import rest_app
from berth.rest.call import RestAccess
from berth.rest.ends import EndLog
from berth.rest.operations import RestOperations
from berth.settings import Settings
from bus.delivery.runner import Bus
from bus.http import HttpLimits, announce, listen, serve
from bus.sql.database import Database
from placement_worker.http import format_refusal
from placement_worker.http.recording import RecordedRequests

_CONNECTIONS = 2000  # most open connections: clients wait for the ends of their builds


async def serve_rest(
    settings: Settings, bus: Bus, database: Database, ends: EndLog, queues_of: QueuesOf
) -> None:
    """Serve the REST API until cancelled."""
    tokens = tokens_of(settings, bus.clock)
    records = RecordedRequests(bus.publish, bus.clock, policy_of(settings), known_by(settings))
    operations = RestOperations(bus, settings, database, ends, ProblemList(bus, settings, queues_of).recent)
    app = rest_app(operations, RestAccess(tokens, records))
    async with tokens, asyncio.TaskGroup() as group:
        working = [group.create_task(operations.accepted.run()), group.create_task(records.run())]
        listener = listen(settings.rest.http)
        announce("the REST API is served", listener, "/", tls_of(settings))
        await serve(
            app,
            listener,
            limits=HttpLimits(connections=_CONNECTIONS),
            format_refusal=format_refusal,
            closing=ends.close,
            tls=tls_of(settings),
        )
        for task in working:
            task.cancel()
