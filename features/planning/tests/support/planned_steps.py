"""Steps of plans, by the numbers of their instances and hosts."""

from features.planning.messages import PlannedStep
from tests.support.ids import uid


def a_step(build: int, source: int, destination: int, wave: int = 0) -> PlannedStep:
    return PlannedStep(
        build=uid(build), kind="live", cell="c1", source=uid(source, "a"), source_host=f"host-{source}",
        destination=uid(destination, "a"), destination_host=f"host-{destination}", wave=wave,
        holder=uid(build, "b"),
    )  # fmt: skip
