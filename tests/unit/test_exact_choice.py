"""The chosen host equals the best host of a slow evaluation of all hosts."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from bus.decisions import Record, RecordedHost, RecordedScale
from bus.requests import Hints
from scheduler_worker.core.host_hashes import drawn, tie
from scheduler_worker.core.order import further_constraints
from scheduler_worker.core.scores import replay
from tests.support.exact_choice import BATCHES, MORE_BATCHES, Batches, in_soak, some_orders
from tests.support.ids import uid
from tests.support.scheduler_builders import SMALL, a_request


@pytest.mark.parametrize("seeds", [range(1, BATCHES), *in_soak(BATCHES, MORE_BATCHES, 590)], ids=str)
def test_every_choice_of_a_batch_is_the_best_after_the_earlier_ones(seeds: range) -> None:
    assert min(Batches().check(seeds, some_orders)) > len(seeds)


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
