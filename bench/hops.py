"""Measures hops per second: consume, publish with confirm, acknowledge; singly and coalesced.

A hop is the work of a worker for a message: take it from a durable queue, handle it, publish the result
persistently, wait for the confirm, acknowledge. Without coalescing every message is a separate AMQP message.
"""

import argparse
import asyncio
import os
import time

from bench.own_servers import broker_at
from bus import topics
from bus.delivery.runner import Bus
from bus.messages import BuildDeleted, BuildDeleteRequested
from bus.rabbit import RabbitTransport
from bus.worker import Worker, on


async def hops_per_second(url: str, messages: int, coalesce: bool, quorum: bool) -> float:
    name = f"bench{os.getpid()}{'c' if coalesce else 's'}{'q' if quorum else 'k'}"

    def connect() -> RabbitTransport:
        return RabbitTransport(url, exchange=name, coalesce=coalesce, quorum=quorum)

    async def hop(asked: BuildDeleteRequested) -> BuildDeleted:
        return BuildDeleted(build=asked.build, cell=asked.cell, reply_to=asked.reply_to)

    worker = Worker(
        "bench",
        consumes=[on(topics.BUILD_DELETE.at(cell="c1"), hop, emits=[topics.BUILD_DELETED], concurrency=256)],
    )
    stopping = asyncio.Event()
    async with Bus(connect()) as client, Bus(connect()) as server, asyncio.TaskGroup() as group:
        await server.transport.declare(worker.queue_of(worker.consumes[0]))
        heard = await client.listen(topics.BUILD_DELETED.at(reply_to="bench"), 2000)
        requests = [
            BuildDeleteRequested(build=client.clock.uuid(), cell="c1", reply_to="bench")
            for _ in range(messages)
        ]
        await client.publish(*requests)  # the queue is filled first, so that only hops are measured
        began = time.perf_counter()
        group.create_task(server.serve(worker, stopping))
        for _ in range(messages):
            await heard.get()
        seconds = time.perf_counter() - began
        stopping.set()
    return messages / seconds


async def measure(url: str, messages: int) -> None:
    print(f"{'queues':10} {'single/s':>10} {'coalesced/s':>12} {'ratio':>7}")
    for quorum in (True, False):
        single = await hops_per_second(url, max(messages // 10, 500), coalesce=False, quorum=quorum)
        coalesced = await hops_per_second(url, messages, coalesce=True, quorum=quorum)
        name = "quorum" if quorum else "classic"
        print(f"{name:10} {single:10.0f} {coalesced:12.0f} {coalesced / single:6.1f}x")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--amqp-url", help="a running RabbitMQ; by default a private one is started")
    parser.add_argument("--messages", type=int, default=20_000)
    arguments = parser.parse_args()
    with broker_at(arguments.amqp_url) as url:
        asyncio.run(measure(url, arguments.messages))


if __name__ == "__main__":
    main()
