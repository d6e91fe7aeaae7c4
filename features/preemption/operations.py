"""Operations on the records of preemptions, which claims make."""

from features.preemption import store as preemptions
from features.preemption.messages import FindPreemptions, PreemptionsFound
from placement_worker.extension import PlacementOperations


class PreemptionRecords(PlacementOperations):
    """Finds and prunes the records of preemptions."""

    async def find(self, query: FindPreemptions) -> PreemptionsFound:
        async with self.database.read() as tx:
            found = tuple(await preemptions.find(tx, query))
            now, projects = self.clock.now(), [query.project] if query.project is not None else []
            used = await preemptions.used(tx, projects, now)
            if query.latest:
                used |= await preemptions.used_most(tx, now, query.latest)
            return PreemptionsFound(preemptions=found, used=used)

    async def prune(self, before: float) -> None:
        """Delete the records from before this time."""
        async with self.database.write() as tx:
            await preemptions.PRUNE(tx, before=before)
