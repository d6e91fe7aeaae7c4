"""Every decision of a mixed load, made again from what travelled of it, comes to the same host."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from bus import codec
from bus.claims import ClaimAnswered, ClaimRequested
from bus.decisions import Record, RecordedHost, RecordedScale
from bus.messages import BuildPlaced, BuildRequested, HostFailed
from bus.requests import Flavor, Hints
from scheduler_worker import ChoicePolicy
from scheduler_worker.core.host_map import drawn, tie
from scheduler_worker.core.order import also_asked
from scheduler_worker.core.scale import replay
from tests.support.ids import uid
from tests.support.scheduler_builders import (
    SMALL,
    FakePlacement,
    TurnedClock,
    a_candidate,
    a_heartbeat,
    a_request,
)
from tests.support.schedulers import scheduler_of

BOOTS, HOSTS = 1000, 60
FLAVORS = [
    Flavor(name=f"f{vcpus}-{ram}", vcpus=vcpus, memory_mb=ram * vcpus, disk_gb=vcpus)
    for vcpus in (1, 2, 3, 4, 6)
    for ram in (256, 512, 1024, 2048)
]
PLENTY = {"VCPU": 160, "MEMORY_MB": 128 * 1024, "DISK_GB": 900}
FILTERS = ("up", "enabled", "num_instances", "io_ops")


@dataclass
class Contested(FakePlacement):
    chance: random.Random = field(default_factory=lambda: random.Random(3))

    async def claim_many(self, orders: Sequence[ClaimRequested]) -> list[ClaimAnswered]:
        wanted = {next(iter(order.claims[0].choices[0].allocations)) for order in orders}
        taken = {root: self.free[root]["MEMORY_MB"] for root in sorted(wanted) if self.chance.random() < 0.15}
        for root, amount in taken.items():
            self.take(root, {"MEMORY_MB": amount})
        answers = await super().claim_many(orders)
        for root, amount in taken.items():
            self.take(root, {"MEMORY_MB": -amount})
        return answers


@dataclass(frozen=True)
class MixedLoad:
    name: str
    weighers: dict[str, float]
    subset: int = 1
    near: float = 0.0


LOADS = [
    MixedLoad("spreading", {"ram": 1.0, "cpu": 1.0, "disk": 1.0, "build_failure": 1000.0}),
    MixedLoad("packing", {"ram": -1.0, "cpu": -0.5, "build_failure": 1000.0}),
    MixedLoad("among the five best", {"ram": 1.0, "io_ops": -1.0, "build_failure": 1000.0}, subset=5),
    MixedLoad("much alike", {"ram": 1.0, "cpu": 1.0}, near=0.2),
]


async def placed_by(load: MixedLoad) -> list[BuildPlaced]:
    """A thousand boots of twenty flavors in three cells, in batches, with hosts that fail builds."""
    chance = random.Random(11)
    candidates = [a_candidate(number, cell=f"cell{number % 3}", free=dict(PLENTY)) for number in range(HOSTS)]
    placement = Contested.of(*candidates)
    time = TurnedClock()
    policy = ChoicePolicy.from_names(FILTERS, load.weighers, subset=load.subset, near=load.near)
    scheduler = scheduler_of(placement, policy=policy, clock=time.clock)
    sent, heard, placed = 0, 0, list[BuildPlaced]()
    while sent < BOOTS:
        heard += 1
        for number in range(heard % 7, HOSTS, 7):
            state = {"building": chance.randrange(5), "instances": chance.randrange(30), "load": 0.5}
            await scheduler.handle(
                a_heartbeat(
                    number, sequence=heard, cell=f"cell{number % 3}", enabled=number % 17 != 0, **state
                )
            )
        for number in chance.sample(range(HOSTS), 3):
            failed = HostFailed(
                root=uid(number, "c"),
                host=f"host{number}",
                agent=f"agent{number}",
                cell=f"cell{number % 3}",
                build=uid(1, "b"),
                attempt=1,
            )
            await scheduler.hear_of_failure(failed)
        batch = list[BuildRequested]()
        for _ in range(40):
            several = chance.choice((1, 1, 1, 3))
            sent += several
            request = a_request(
                sent, instances=several, flavor=chance.choice(FLAVORS), alternates=chance.randrange(4)
            )
            batch.append(replace(request, cell=chance.choice(("", "", "cell1"))))
        time.now += 1.0
        for verdict in await scheduler.place_many(batch):
            assert isinstance(verdict, Sequence), verdict
            placed += [codec.decode(BuildPlaced, codec.encode(answer)) for answer in verdict]
    return placed


@pytest.mark.parametrize("load", LOADS, ids=lambda load: load.name)
async def test_every_decision_of_a_mixed_load_comes_to_the_same_host_again(load: MixedLoad) -> None:
    placed = await placed_by(load)
    assert len(placed) >= BOOTS
    differs = []
    for one in placed:
        record = one.decision.record
        assert record is not None
        host = replay(one.build, record).host
        if host is None or host.root != one.chosen.root:
            differs.append((one.build, one.chosen.host, record))
    assert not differs, (len(differs), differs[:2])
    told = Counter(bool(one.decision.record and one.decision.record.turned_down) for one in placed)
    assert told[True] > 50  # picks beyond the first choice


A, B, C = (RecordedHost(uid(n, "c"), f"host{n}", (worth,)) for n, worth in ((1, 9.0), (2, 5.0), (3, 9.0)))
SCALES = (RecordedScale("ram", 1.0, 0.0, 10.0),)
FIRST, SECOND = sorted((A, C), key=lambda host: tie("s", host.root))


@pytest.mark.parametrize(
    ("record", "host"),
    [
        (Record(seed="s", scales=SCALES, hosts=(A, B)), A),
        (Record(seed="s", scales=SCALES, hosts=(B, A)), A),
        (Record(seed="s", scales=(RecordedScale("ram", -1.0, 0.0, 10.0),), hosts=(A, B)), B),
        (Record(seed="s", scales=SCALES, hosts=(A, B, C)), FIRST),
        (Record(seed="s", scales=SCALES, hosts=(A, B, C), turned_down=(FIRST.root,)), SECOND),
        (Record(seed="s", near=0.5, scales=SCALES, hosts=(replace(A, chosen=1), C)), C),
        (Record(seed="s", scales=SCALES, hosts=(replace(A, refused="up: down"), B)), B),
        (Record(seed="s", scales=SCALES, hosts=(replace(A, outside=True), B)), B),
        (Record(seed="s", scales=SCALES,
                hosts=(replace(A, outside=True, unknown=True), replace(B, outside=True))), B),
        (Record(seed="s", scales=SCALES, hosts=(replace(A, multipliers={"ram": -1.0}), B)), B),
        (Record(seed="s", subset=2, scales=SCALES, hosts=(A, B)), (A, B)[drawn("s", "build", 2)]),
        (Record(), None),
    ],
)  # fmt: skip
def test_results_of_replayed_records(record: Record, host: RecordedHost | None) -> None:
    found = replay("build", record).host
    assert (found and found.root) == (host and host.root)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, b"null"),
        ({"zone": "z1"}, b'{"zone":"z1"}'),
        ({"hints": Hints(query='["=", "$host", "a"]')}, None),
        ({"ignore_hosts": ("h1",), "alternates": 5}, b'{"ignore_hosts":["h1"]}'),
    ],
)
def test_a_record_says_what_was_asked_beside_what_is_built(
    fields: dict[str, Any], said: bytes | None
) -> None:
    asked = also_asked(a_request(1, flavor=SMALL, **fields))
    if said is None:
        assert asked is not None and asked.hints == fields["hints"]
    else:
        assert msgspec.json.encode(asked) == said
