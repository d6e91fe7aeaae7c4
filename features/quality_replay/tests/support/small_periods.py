"""Small past periods on equal hosts, and their replay."""

import asyncio
from collections.abc import Mapping, Sequence

from msgspec import structs

from berth.kit import Settings, choice_policy
from bus.messages import BuildRequested
from bus.replication import ConsumerChange
from bus.requests import Flavor
from features.history.messages import SnapshotPart
from features.history.past import PastCloud
from features.quality_replay.period import Event, PeriodOutcome, RecordedArrival, RecordedPeriod
from features.quality_replay.repeated_conditions import RepeatedCondition
from features.quality_replay.replaying import QualityReplay
from placement_worker.extension import Tree, packed
from tests.support.ids import uid
from tests.support.provider_trees import state, tree

SPREAD = Settings().having(placement_profile="spread")
PACKING = SPREAD.having(scheduler_weighers={"+ram": -1.0, "+cpu": -1.0})
HALF = Flavor(name="half", vcpus=4, memory_mb=4096)  # of a host
WHOLE = Flavor(name="whole", vcpus=8, memory_mb=8192)


def a_host(number: int, *traits: str, used: Flavor | None = None) -> Tree:
    amounts = {} if used is None else amounts_of(used)
    return tree(
        state(number, inventories={"VCPU": 8, "MEMORY_MB": 8192}, used=amounts, traits=traits, shape=0)
    )


def amounts_of(flavor: Flavor) -> dict[str, int]:
    return {"VCPU": flavor.vcpus, "MEMORY_MB": flavor.memory_mb}


def the_root(number: int) -> str:
    return uid(number, "a")


def instance(number: int) -> str:
    return uid(number, "b")


def asking(flavor: Flavor, **fields: object) -> BuildRequested:
    request = BuildRequested(request=uid(0), instances=(uid(0),), flavor=flavor, project=uid(0), alternates=0)
    return structs.replace(request, **fields)


def arrives(
    at: float, number: int, flavor: Flavor, *, refused: bool = False, **fields: object
) -> RecordedArrival:
    return RecordedArrival(at, (instance(number),), asking(flavor, **fields), refused)


def a_period(
    *events: Event,
    hosts: int = 2,
    existing: Mapping[int, tuple[int, Flavor]] = {},
    demand: Sequence[Flavor] = (),
    end: float = 100.0,
    conditions: Sequence[RepeatedCondition] = (),
) -> RecordedPeriod:
    """Return a period from 0 with equal hosts. `existing`: instance → its host and flavor. `demand`: the
    flavors of requests before the period.
    """
    cloud, used = PastCloud(0, 0.0), dict(existing.values())
    consumers = [
        ConsumerChange(instance(number), 1, {the_root(host): amounts_of(flavor)}, uid(0), "INSTANCE")
        for number, (host, flavor) in existing.items()
    ]
    trees = [a_host(number, used=used.get(number)) for number in range(hosts)]
    cloud.load(SnapshotPart(trees=packed(trees), consumers=tuple(consumers)))
    return RecordedPeriod(
        begin=0.0,
        end=end,
        cloud=cloud,
        events=events,
        earlier={instance(900 + number): asking(flavor) for number, flavor in enumerate(demand)},
        conditions=conditions,
    )


def replayed(period: RecordedPeriod, settings: Settings = SPREAD) -> PeriodOutcome:
    return asyncio.run(QualityReplay(period, choice_policy(settings), settings).run())
