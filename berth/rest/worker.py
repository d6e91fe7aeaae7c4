"""Makes the worker of the REST API, which serves HTTP, and stores the results of requests that came over
HTTP.

HTTP server and app are imported when the worker starts, not when only its topics are listed.
"""

from berth.features import added, messages
from berth.kit.rest import RestPart
from berth.kit.rest_ends import REPLY_TO
from berth.problems.reading import QueuesOf, asks
from berth.rest.ends import EndLog
from berth.settings import Settings
from bus import topics
from bus.audit_trail import ActsRecorded
from bus.delivery.runner import Bus
from bus.messages import BuildCancelRequested, BuildDeleteRequested, BuildRequested
from bus.sql.database import Database
from bus.worker import Worker, every, on_many, prune_period

LINGER = 0.05  # seconds to wait under load for further results, to store them in the same transaction
_ASKED = (
    topics.CELLS,
    topics.PROJECTS,
    topics.FIND_BUILDS,
    topics.FIND_INSTANCES,
    topics.WAITING,
    topics.DECISION,
)
_PUBLISHED = (BuildRequested, BuildCancelRequested, BuildDeleteRequested, ActsRecorded)


def rest_worker(settings: Settings, bus: Bus, database: Database, queues_of: QueuesOf) -> Worker:
    """Return the worker that receives and stores the ends of requests of the REST API. `queues_of` lists the
    queues of workers, for the list of problems.
    """
    keep = settings.keep.ended
    rules = {kind: rule for part in added(RestPart, "rest") for kind, rule in part.ends.items()}
    ends = EndLog(database, bus.clock, keep, keep + settings.requests.max_wait, rules)

    async def serve() -> None:
        from berth.rest.serving import serve_rest

        await serve_rest(settings, bus, database, ends, queues_of)

    return Worker(
        "rest",
        consumes=[
            on_many(topic.at(reply_to=REPLY_TO), ends.record, batch=256, concurrency=1, linger=LINGER)
            for topic in topics.client_topics()
        ],
        asks=tuple(
            dict.fromkeys((*_ASKED, *asks(), *(query for part in messages() for query in part.rest_asks)))
        ),
        timers=[every(prune_period(keep), ends.prune)],
        runs=[ends.follow, serve],
        announces=frozenset(
            {*_PUBLISHED, *(message for part in messages() for message in part.rest_publishes)}
        ),
    )
