"""Counts the preemptions of a cell."""

from prometheus_client import Counter

from cell_conductor.extension import Applied, CourseStore
from features.preemption.core.courses import Awaited

PREEMPTIONS = Counter(
    "berth_preemptions",
    "builds that preempt instances: started, finished (the victims have left) or undone (deleted before)",
    ["cell", "stage"],
)


class PreemptionMetrics(CourseStore):
    def count(self, applied: Applied) -> None:
        before, after = applied.before, applied.after
        awaited = before is not None and Awaited in before.parts
        if after is None or awaited == (Awaited in after.parts):
            return
        stage = "started" if not awaited else "undone" if after.doom else "finished"
        PREEMPTIONS.labels(after.cell, stage).inc()
