"""Receipt: counts the messages of one call that are not yet stored by the broker, or not yet handled."""

import asyncio


class Receipt:
    """Counts messages that are not settled yet. `done` gets its result with the last one."""

    __slots__ = ("done", "missing", "problem")

    def __init__(self, missing: int) -> None:
        self.missing = missing
        self.problem: Exception | None = None
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def settle(self, problem: Exception | None = None) -> None:
        """Count one message as settled, or as failed with `problem`."""
        self.problem = self.problem or problem
        self.missing -= 1
        if self.missing or self.done.done():
            return
        if self.problem is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(self.problem)
