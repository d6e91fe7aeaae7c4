"""A flavor and a decision with its record, for pages that show them."""

from bus.decisions import Decision, NearMiss, RecordedHost, RecordedScale, Removal
from bus.decisions import Record as DecisionRecord
from bus.requests import Flavor
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
