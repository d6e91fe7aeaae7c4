"""A worker process that is killed by some messages, as by the kernel when memory runs out.

    python -m tests.integration.dying_worker BROKER EXCHANGE OUTCOMES

BROKER is an AMQP URL, or the directory of an embedded bus. Each handled message is one line of OUTCOMES.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from bus import topics
from bus.delivery.runner import Bus
from bus.local import LocalBroker, LocalTransport
from bus.local.journal import Journal
from bus.messages import BuildCancelRequested
from bus.names import FindNames, NamesFound
from bus.rabbit import RabbitTransport
from bus.worker import Outcome, Worker, answers_many, on_many

DEADLY = "dead"  # ids and names that begin so


def worker(outcomes: Path) -> Worker:
    def handled(names: Sequence[str]) -> None:
        if any(name.startswith(DEADLY) for name in names):
            os.kill(os.getpid(), signal.SIGKILL)
        with outcomes.open("a") as file:
            file.writelines(f"{name}\n" for name in names)

    async def cancel(requests: Sequence[BuildCancelRequested]) -> Sequence[Outcome]:
        handled([request.build for request in requests])
        return [None] * len(requests)

    async def find(questions: Sequence[FindNames]) -> Sequence[NamesFound]:
        handled([question.prefix for question in questions])
        return [NamesFound(names=()) for _ in questions]

    return Worker(
        "scheduler",
        consumes=[on_many(topics.BUILD_CANCEL, cancel)],
        answers=[answers_many(topics.NAMES, find)],
    )


async def main(broker: str, exchange: str, outcomes: Path) -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    if broker.startswith("amqp"):
        async with Bus(RabbitTransport(broker, exchange=exchange)) as bus:
            await bus.serve(worker(outcomes), stopping)
        return
    journal = Journal(Path(broker) / "bus.db")
    async with Bus(LocalTransport(LocalBroker(journal=journal))) as bus:
        await bus.serve(worker(outcomes), stopping)
    await journal.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
