"""Lets cells record instances that `berth audit heal` found: guests without a record, and restored
allocations.
"""

import asyncio

from berth.kit import HealingPart, Recording, publish
from bus.delivery.runner import Bus
from bus.requests import BuildSpec
from features.adoption.adoptable import OldServer, flavor_of
from features.adoption.messages import BUILD_ADOPTED, BuildAdopted, BuildAdoptRequested


async def record(bus: Bus, recording: Recording, reply_to: str, seconds: float) -> str:
    """Ask a cell to adopt an instance with its allocations; return "", or why the cell rejected them or did
    not confirm them in time.
    """
    allocations = recording.chosen.choice.allocations
    adoption = BuildAdoptRequested(
        build=recording.build,
        cell=recording.cell,
        chosen=recording.chosen,
        generation=recording.generation,
        spec=recording.spec
        or BuildSpec(
            flavor=flavor_of(allocations, OldServer()), project=recording.project, user=recording.user
        ),
        attempt=recording.attempt,
        reply_to=reply_to,
    )
    listener = await bus.listen(BUILD_ADOPTED.at(reply_to=reply_to))
    try:
        await publish(bus, adoption)
        async with asyncio.timeout(seconds):
            while True:
                answer: BuildAdopted = await listener.get()
                if answer.build == adoption.build:
                    return f"its cell: {answer.why}" if answer.outcome == "refused" else ""
    except TimeoutError:
        return "its cell has not confirmed it yet: try again"
    finally:
        await listener.stop()


PART = HealingPart(record)
