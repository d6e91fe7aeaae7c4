"""The placement worker's table: consumed topics, answered queries, published changes."""

from collections.abc import Sequence

from prometheus_client import Gauge

from bus import topics
from bus.messages import BuildReshaped
from bus.replication import PlacementChanged
from bus.vocabulary import Message
from bus.worker import Worker, answers, answers_many, every, on_many
from placement_worker.cell_rows import RegisteredCells, asked_in, reported_in
from placement_worker.placement import Placement
from placement_worker.relay import Publish

LAST_CHANGE = Gauge("berth_placement_last_change", "number of the last commit that this index has applied")
ROOTS = Gauge("berth_placement_roots", "hosts and bare-metal nodes in this index")


ANNOUNCES: frozenset[type[Message]] = frozenset({PlacementChanged, BuildReshaped})

CATCH_UP_SECONDS = 5.0
SWEEP_SECONDS = 10.0
TRIM_SECONDS = 60.0
PRUNE_SECONDS = 3600.0


def placement_worker(placement: Placement, publish: Publish, cells: Sequence[str]) -> Worker:
    """Return the worker. `publish` is `Bus.publish`, for changes. `cells` are served in addition to
    registered ones.

    Messages from inside a cell have separate queues, and the row determines the cell, whatever the message
    contains.
    """

    async def catch_up() -> None:
        await placement.memory.fresh()
        LAST_CHANGE.set(placement.memory.index.seen)
        ROOTS.set(len(placement.memory.index.trees))

    return Worker(
        "placement",
        consumes=[
            *(reported_in(placement, cell) for cell in cells),
            on_many(topics.PLACEMENT_CHANGED, placement.memory.handle_many, private=True, concurrency=1),
        ],
        answers=[
            answers(topics.FIND_CANDIDATES, placement.find_candidates),
            answers_many(topics.CLAIM, placement.claims.claim_many),
            answers_many(topics.RELEASE, placement.claims.release_many),
            answers(topics.PROVIDERS, placement.lookups.providers),
            *(row for cell in cells for row in asked_in(placement, cell)),
            answers_many(topics.EDIT, placement.providers.edit_many),
            answers(topics.EDIT_OWNER, placement.reports.give),
            answers(topics.LOAD, placement.bulk_load.load, concurrency=2),
            answers(topics.ALLOCATIONS, placement.lookups.allocations),
            answers(topics.USAGES, placement.lookups.usages),
            answers(topics.TREES, placement.lookups.trees, concurrency=2),
            answers(topics.CHANGES, placement.lookups.changes),
            answers(topics.NAMES, placement.classes_and_traits.find),
            answers(topics.EDIT_NAME, placement.classes_and_traits.edit),
            answers(topics.GROUPS, placement.server_groups.find),
            answers(topics.EDIT_GROUP, placement.server_groups.edit),
            answers(topics.AGGREGATES, placement.aggregates.find),
            answers(topics.EDIT_AGGREGATE, placement.aggregates.edit),
            answers(topics.CELLS, placement.cells.find),
            answers(topics.EDIT_CELL, placement.cells.edit),
        ],
        timers=[
            every(CATCH_UP_SECONDS, catch_up),
            every(SWEEP_SECONDS, placement.reports.sweep),
            every(TRIM_SECONDS, placement.log.trim),
            every(PRUNE_SECONDS, placement.prune),
        ],
        starts=[placement.start],
        runs=[
            lambda: placement.log.relay.run(publish),
            lambda: placement.reports.reshaped_builds.run(publish),
        ],
        widens=[RegisteredCells(placement, cells).serve],
        announces=ANNOUNCES,
    )
