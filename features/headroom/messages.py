"""Messages that query the failover headrooms."""

from bus.claims import ConsumerClaim
from bus.domains import Level
from bus.feature import MessagesPart
from bus.topics import ANYONE, Query
from bus.vocabulary import Cause, Count, LongList, Message, Seconds, ShortList, Value
from features.reservations.messages import Reservation


class Headroom(Value, frozen=True, kw_only=True):
    """A reservation for failover, and whether all instances of any one failed domain fit into its slots."""

    reservation: Reservation
    kept: bool  # True: all instances of any one failed domain fit into the slots
    slots: Count
    domains: Count
    instances: Count
    lacking: LongList[Cause] = ()  # why the slots are insufficient
    unlabelled: ShortList[Level] = ()  # levels of which no host has a label
    # why no slots would be sufficient after the query's claims; empty if `lacking` has reasons already
    lacking_then: LongList[Cause] = ()
    lost_since: Seconds = 0.0  # since when placement has known that it is not kept; 0: it is kept


class FindHeadroom(Message, frozen=True, kw_only=True):
    """A query for the failover headrooms with their present state, and with their state after `claims`."""

    claims: LongList[ConsumerClaim] = ()  # hypothetical claims: each gets its first choice


class HeadroomFound(Message, frozen=True, kw_only=True):
    """All headrooms, with their state."""

    headrooms: LongList[Headroom]


HEADROOM = Query(
    "placement.headroom",
    FindHeadroom,
    HeadroomFound,
    "failover headrooms, and whether they are kept",
    ANYONE,
    "placement",
)


PART = MessagesPart(page_asks=(HEADROOM,))
