"""The names of the scheduler that features may import, besides those of `scheduler_worker.core.extension`.

A feature extends the scheduler by the purposes of orders, and by a `SchedulerPart` with narrowings and
fallbacks. The kernel calls a narrowing with the orders that it `concerns`; a plain boot is concerned by none.
"""

from scheduler_worker.cancelling import Cancellation, CancelResults, Fenced
from scheduler_worker.composition import PartsOf, SchedulerNeeds
from scheduler_worker.core import events
from scheduler_worker.core.choosing import Choosing
from scheduler_worker.core.events import Chosen, ComeAgain, DeadLetterRequest, TakenOver
from scheduler_worker.core.fitting import EXAMPLES, FoundHosts, Shortage, capacities, masks_of
from scheduler_worker.core.host_map import AllHosts, HostsNow, drawn
from scheduler_worker.core.narrowing import Narrowing, Remedies, claims_of
from scheduler_worker.core.order import (
    CANCELLED,
    CANCELLED_CODE,
    DELETED,
    ENDED_BEFORE,
    LONGEST_PAUSE,
    MAX_CHOICES_EACH,
    SOON,
    EndedInstance,
    Order,
    OrderSection,
    Purpose,
    Settled,
    Verdict,
    alternates_of,
    attempts_of,
    failed,
    place_of,
    sections_of,
    unplaceable,
    with_ended,
)
from scheduler_worker.core.policy import (
    FILTER_BOOK,
    PROFILES,
    WEIGHER_BOOK,
    BadChoice,
    ChoicePolicy,
    filter_names,
    with_changes,
)
from scheduler_worker.core.ranking import (
    CapacityReservation,
    HasReservations,
    Pick,
    Ranking,
    Replayed,
    replay,
    scores_of,
)
from scheduler_worker.core.request import TENANT, listed
from scheduler_worker.core.rule import (
    PLAIN,
    AllowedHosts,
    Alternative,
    ClaimPart,
    HostLimit,
    RuleError,
    Scope,
    Together,
    Unfit,
)
from scheduler_worker.core.rules import RULES_OF_PLACEMENT
from scheduler_worker.core.tally import MOST_SEARCHES, Found, Tally
from scheduler_worker.dependencies import (
    PLACED_EMITS,
    PLACEMENT_ASKED,
    TRIES_UNDELIVERABLE,
    Ending,
    HeldAllocations,
    Publish,
    SchedulerOptions,
    log,
    prepared_in_parts,
    providers_of,
    together,
)
from scheduler_worker.explanations import Explanations
from scheduler_worker.host_arrays import HostArrays, accepting, active_instances, amounts_on_host
from scheduler_worker.hosts import HostBook, KnownHosts, Roster
from scheduler_worker.owners import Owners
from scheduler_worker.placing import (
    REQUEST_SECONDS,
    Fallback,
    FallbackAnswer,
    Orders,
    RequestIntake,
    Scheduler,
    SchedulerPart,
    all_helps,
    late_after,
    postponed,
)
from scheduler_worker.queries import CellQueries, PlacementQueries
from scheduler_worker.refusals import RefusalRecords
from scheduler_worker.restricted_orders import on_closed, only_on
from scheduler_worker.store import decisions
from scheduler_worker.store.leaders import Lead
