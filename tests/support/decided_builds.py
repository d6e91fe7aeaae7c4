"""A flavor and a decision with its record, for pages that show them."""

from typing import Any

from bus.claims import Choice
from bus.decisions import Decision, NearMiss, RecordedHost, RecordedScale, Removal
from bus.decisions import Record as DecisionRecord
from bus.messages import Attempt, BuildPlaced, Selection
from bus.queries import BuildsFound, BuildStands, DecisionFound
from bus.requests import BuildSpec, Flavor
from tests.support.ids import uid

FLAVOR = Flavor(name="m<1>", vcpus=1, memory_mb=512, disk_gb=1)
RECORD = DecisionRecord(
    scales=(RecordedScale("ram", 1.0, 0.0, 10.0),),
    hosts=(
        RecordedHost(uid(1, "a"), "h1", (9.0,)),
        RecordedHost(uid(2, "a"), "h2", (1.0,)),
        RecordedHost(uid(3, "a"), "h3", (5.0,), "io_ops: too many builds"),
    ),
)
DECISION = Decision(
    considered=100,
    removals=(Removal(constraint="zone z1", removed=60, left=40, hosts=("far1", "far2")),),
    nearest=(NearMiss(host="far1", lacks="1 VCPU"),),
    helps=("one more VCPU",),
    record=RECORD,
)
PLACED = BuildPlaced(
    build=uid(7),
    request=uid(8),
    cell="c1",
    chosen=Selection(root=uid(1, "a"), host="h1", agent="a1", choice=Choice(allocations={}, shapes={})),
    generation=1,
    spec=BuildSpec(flavor=FLAVOR, project="p", user="u"),
    decision=DECISION,
)
ATTEMPTS = (
    Attempt(host="h9", agent="a9", outcome="failed", cause="no disk", started=100.0, ended=101.0),
    Attempt(host="h1", agent="a1", outcome="built", started=101.0, ended=103.0),
)
STANDS = BuildStands(build=uid(7), status="active", placed=PLACED, host="h1", attempts=ATTEMPTS)
NOTHING: dict[str, Any] = {"builds": BuildsFound(builds=()), "decision": DecisionFound()}
