"""The chosen host equals the best host of a slow evaluation of all hosts."""

from random import Random
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from berth.loadtest import mixed
from bus.decisions import Record, RecordedHost, RecordedScale
from bus.requests import Hints
from placement_worker import IndexedSource
from scheduler_worker import ChoicePolicy
from scheduler_worker.core.host_map import drawn, tie
from scheduler_worker.core.order import further_constraints
from scheduler_worker.core.ranking import replay
from tests.support.exact_choice import BATCHES, MORE_BATCHES, Batches, in_soak, some_orders
from tests.support.ids import uid
from tests.support.index_source import FilledMemory
from tests.support.provider_trees import state, tree
from tests.support.ranking_builders import Hall
from tests.support.scheduler_builders import SMALL, a_request


@pytest.mark.parametrize("seeds", [range(1, BATCHES), *in_soak(BATCHES, MORE_BATCHES, 590)], ids=str)
def test_every_choice_of_a_batch_is_the_best_after_the_earlier_ones(seeds: range) -> None:
    assert min(Batches().check(seeds, some_orders)) > len(seeds)


@pytest.mark.parametrize("seed", range(3))
def test_packing_takes_the_fullest_host_that_fits(seed: int) -> None:
    chance, memory, flavors = Random(seed), FilledMemory(), mixed(20)
    for number, used in enumerate(chance.sample(range(60_000), 600)):
        stock = {"VCPU": 1000, "MEMORY_MB": 65_536, "DISK_GB": 10_000}
        memory.index.put(tree(state(number, None, dict(stock), {"MEMORY_MB": used})), 1)
    policy = ChoicePolicy.from_names(weighers={"ram": -1.0}, max_builds=10_000)
    hall = Hall(IndexedSource(memory), policy)
    everybody = hall.source.search(hall.alternative(a_request()).question)
    free = {host.uuid: everybody.amounts(host.position)[0]["MEMORY_MB"] for host in hall.source.hosts()}
    for kind, flavor in enumerate(chance.sample(flavors * 3, 60)):
        ranking = hall.rank(replace(a_request(kind), flavor=flavor), f"{seed}/{kind}")
        for _ in range(20):
            fullest = min((left for left in free.values() if left >= flavor.memory_mb), default=None)
            pick = ranking.take()
            if pick is None:
                assert fullest is None
                break
            assert free[pick.root] == fullest
            free[pick.root] -= flavor.memory_mb


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
    ("fields", "reply"),
    [
        ({}, b"null"),
        ({"zone": "z1"}, b'{"zone":"z1"}'),
        ({"hints": Hints(query='["=", "$host", "a"]')}, None),
        ({"ignore_hosts": ("h1",), "alternates": 5}, b'{"ignore_hosts":["h1"]}'),
    ],
)
def test_a_record_contains_the_constraints_of_the_request(
    fields: dict[str, Any], reply: bytes | None
) -> None:
    asked = further_constraints(a_request(1, flavor=SMALL, **fields))
    if reply is None:
        assert asked is not None and asked.hints == fields["hints"]
    else:
        assert msgspec.json.encode(asked) == reply
