"""The names of the scheduler that features may import, besides those of `scheduler_worker.core.extension`.

A feature extends the scheduler by the purposes of orders, and by a `SchedulerPart` with narrowings and
fallbacks. The kernel calls a narrowing with the orders that it `concerns`, and no narrowing concerns a plain
boot; only `renew` and `late` are called for the alternatives of all orders, so they must be cheap.
"""

from bus.feature import MakesPart
from scheduler_worker.cancelling import Cancellation, CancelResults, Fenced
from scheduler_worker.composition import SchedulerNeeds
from scheduler_worker.core import events
from scheduler_worker.core.choosing import Choosing
from scheduler_worker.core.events import Chosen, ComeAgain, DeadLetterRequest, TakenOver
from scheduler_worker.core.existing_claims import place_of
from scheduler_worker.core.fitting import FoundHosts, capacities, masks_of
from scheduler_worker.core.host_hashes import drawn
from scheduler_worker.core.host_map import AllHosts, HostsNow
from scheduler_worker.core.narrowing import Narrowing, Remedies, claims_of
from scheduler_worker.core.order import (
    CANCELLED,
    CANCELLED_CODE,
    DELETED,
    MAX_CHOICES_EACH,
    EndedInstance,
    Order,
    Purpose,
    Settled,
    Verdict,
    alternates_of,
    attempts_of,
    failed,
    unplaceable,
    with_ended,
)
from scheduler_worker.core.order_sections import OrderSection, sections_of
from scheduler_worker.core.policy import (
    FILTER_BOOK,
    PROFILES,
    WEIGHER_BOOK,
    BadChoice,
    ChoicePolicy,
    filter_names,
    with_changes,
)
from scheduler_worker.core.prefilters import TENANT, listed
from scheduler_worker.core.ranking import CapacityReservation, HasReservations, Pick, Ranking, scores_of
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
from scheduler_worker.core.scores import Replayed, replay
from scheduler_worker.core.shortage import EXAMPLES, Shortage
from scheduler_worker.core.step import LONGEST_PAUSE, SOON
from scheduler_worker.core.tally import MOST_SEARCHES, Found, Tally
from scheduler_worker.dependencies import (
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
from scheduler_worker.hosts import HostBook
from scheduler_worker.known_hosts import KnownHosts
from scheduler_worker.owners import Owners
from scheduler_worker.placing.fallback import Fallback
from scheduler_worker.placing.orders import Orders, postponed
from scheduler_worker.placing.part import RequestIntake, SchedulerPart
from scheduler_worker.placing.suggestions import REQUEST_SECONDS, all_helps, late_after
from scheduler_worker.placing.surface import Placing, Searching
from scheduler_worker.queries import CellQueries, PlacementQueries
from scheduler_worker.refusals import RefusalRecords
from scheduler_worker.restricted_orders import on_closed, only_on
from scheduler_worker.roster import Roster
from scheduler_worker.store import decisions
from scheduler_worker.store.leaders import Lead


class ForScheduler(MakesPart[SchedulerNeeds, SchedulerPart]):
    """The value PART of a feature's module `scheduler`."""
