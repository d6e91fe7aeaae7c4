"""Receipt: lets a publisher wait until all messages of a call are stored at the broker, or handled by a
worker of the same process.
"""

import asyncio


class Receipt:
    """Counts messages that are neither stored (or handled) nor failed. When none is left, the future `done`
    is completed, with an exception if a message failed.
    """

    __slots__ = ("done", "missing", "problem")

    def __init__(self, missing: int) -> None:
        self.missing = missing
        self.problem: Exception | None = None
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def settle(self, problem: Exception | None) -> None:
        """Count one message as stored or handled, or with `problem` as failed."""
        self.problem = self.problem or problem
        self.missing -= 1
        if self.missing or self.done.done():
            return
        if self.problem is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(self.problem)
            self.done.exception()  # asyncio logs exceptions that are not retrieved: the call may have ended
