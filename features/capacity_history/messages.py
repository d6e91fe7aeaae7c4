"""The capacity of the cloud over time: samples by resource class or flavor and zone, and their query."""

from typing import Annotated, Literal

from msgspec import Meta

from bus.feature import MessagesPart
from bus.topics import ANYONE, Query
from bus.vocabulary import Compact, LongList, Message, Number, Seconds, Text

CapacityKind = Literal["class", "flavor"]
MOST_SAMPLES = 5000  # maximum number of samples in one answer


class CapacitySample(Compact, frozen=True):
    """A sample: amounts of one resource class in a zone, or numbers of instances of one flavor.

    For a flavor, `free` is how many instances fit if no other flavor is built, and `waiting` how many
    instances wait for capacity. A request that waits in no particular zone counts in the zone "".
    """

    at: Seconds  # begin of the interval in which the sample was taken
    kind: CapacityKind
    name: Text
    zone: Text
    capacity: Number = 0.0
    used: Number = 0.0
    free: Number = 0.0
    stranded: Number = 0.0  # part of `free` that is on hosts where no requested flavor fits
    waiting: Number = 0.0


class FindCapacity(Message, frozen=True, kw_only=True):
    """A query for the capacity samples of a period, oldest first."""

    since: Seconds = 0.0
    until: Seconds = 1e12
    kind: CapacityKind = "class"
    name: Text = ""  # resource class or flavor; empty: all
    zone: Text | None = None  # None: the sum of all zones
    after: tuple[Seconds, Text] | None = None  # `last` of the previous page
    limit: Annotated[int, Meta(ge=1, le=MOST_SAMPLES)] = MOST_SAMPLES


class CapacityFound(Message, frozen=True, kw_only=True):
    """The answer to FindCapacity: a page of capacity samples."""

    samples: LongList[CapacitySample] = ()
    last: tuple[Seconds, Text] | None = None  # `after` of the next page; None: this is the last page


CAPACITY = Query(
    "scheduler.capacity",
    FindCapacity,
    CapacityFound,
    "used, free, stranded and waiting capacity over time",
    ANYONE,
    "scheduler",
)


PART = MessagesPart(page_asks=(CAPACITY,))
