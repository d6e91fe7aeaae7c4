"""The weights of projects, which decide their shares while requests wait or are backlogged."""

from collections.abc import Callable, Mapping

from bus.sql.database import Database
from features.waiting.messages import DEFAULT, WeightEditAnswered, WeightEdited, WeightEditRequested
from features.waiting.tables import weights as table

SetWeights = Callable[[Mapping[str, float]], None]


class ProjectWeights:
    """The stored weights as last read, which are passed to the `queues` of this scheduler."""

    def __init__(self, database: Database, *queues: SetWeights) -> None:
        self.queues = list(queues)
        self._database = database
        self._weights: Mapping[str, float] = {}

    def of(self, project: str) -> float:
        """Return the weight of a project, or the default weight."""
        return self._weights.get(project, self._weights.get(DEFAULT, 1.0))

    async def read(self) -> None:
        """Read the weights. They apply from the first request of a flood on, so also without a backlog."""
        async with self._database.read() as tx:
            found = await table.weights(tx)
        self._weights = {project: float(weight) for project, weight in found.items()}
        for set_weights in self.queues:
            set_weights(self._weights)

    async def edit(self, order: WeightEditRequested) -> WeightEditAnswered:
        """Set or remove the weight of a project."""
        async with self._database.write() as tx:
            changed = await table.replace(tx, order.project, order.weight)
        await self.read()
        edited = WeightEdited(project=order.project, weight=order.weight, changed=changed)
        return WeightEditAnswered(result=edited)
