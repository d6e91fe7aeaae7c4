"""The names of the scheduler that features may import, and what a scheduler gives to their parts.

A feature extends the scheduler by the purposes of orders, and by a `SchedulerPart` with narrowings and
fallbacks. The kernel calls a narrowing with the orders that it `concerns`; a plain boot is concerned by none.
"""

from scheduler_worker.agents import Roster
from scheduler_worker.cancelling import Cancellation, Deletes, Fenced
from scheduler_worker.composition import PartsOf, SchedulerNeeds, plain_scheduler
from scheduler_worker.core import events
from scheduler_worker.core.build_purpose import BuildPurpose
from scheduler_worker.core.choosing import Choosing
from scheduler_worker.core.events import Chosen, ComeAgain, DeadLetterRequest, TakenOver
from scheduler_worker.core.fitting import FoundHosts, capacities, masks_of
from scheduler_worker.core.held_claim import place_of
from scheduler_worker.core.helping import Tally
from scheduler_worker.core.host_hashes import drawn
from scheduler_worker.core.host_map import AllHosts, HostsNow
from scheduler_worker.core.narrowing import Narrowing, NoNarrowing, Remedies, claims_of
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
from scheduler_worker.core.placing import LONGEST_PAUSE, SOON
from scheduler_worker.core.policy import (
    FILTER_BOOK,
    WEIGHER_BOOK,
    BadChoice,
    ChoicePolicy,
    MoreRules,
    filter_names,
    with_changes,
)
from scheduler_worker.core.ranking import Ranking
from scheduler_worker.core.rejections import EXAMPLES, Shortage
from scheduler_worker.core.rule import (
    AllowedHosts,
    Alternative,
    HostFacts,
    Number,
    Rule,
    RuleError,
    Together,
    Unfit,
    View,
    Weigher,
    array_rule,
)
from scheduler_worker.core.rules import RULES_OF_PLACEMENT
from scheduler_worker.core.scale import (
    NOTHING_HELD,
    CapacityReservation,
    HasReservations,
    Pick,
    Replayed,
    replay,
    scores_of,
)
from scheduler_worker.core.scope import PLAIN, ClaimPart, HostLimit, Scope
from scheduler_worker.core.sections import OrderSection, sections_of
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
from scheduler_worker.help_search import REQUEST_SECONDS, all_helps, late_after
from scheduler_worker.hosts import HostBook
from scheduler_worker.known_hosts import KnownHosts
from scheduler_worker.orders import Orders, postponed
from scheduler_worker.placing import (
    BaseFallback,
    Fallback,
    FallbackAnswer,
    PlacingOutcome,
    Scheduler,
    SchedulerPart,
)
from scheduler_worker.queries import CellQueries, PlacementQueries
from scheduler_worker.refusals import RefusalRecords
from scheduler_worker.restricted_orders import on_closed, only_on
from scheduler_worker.store import decisions, leaders

__all__ = [
    "CANCELLED",
    "CANCELLED_CODE",
    "DELETED",
    "EXAMPLES",
    "FILTER_BOOK",
    "LONGEST_PAUSE",
    "MAX_CHOICES_EACH",
    "NOTHING_HELD",
    "PLACEMENT_ASKED",
    "PLAIN",
    "REQUEST_SECONDS",
    "RULES_OF_PLACEMENT",
    "SOON",
    "TRIES_UNDELIVERABLE",
    "WEIGHER_BOOK",
    "AllHosts",
    "AllowedHosts",
    "Alternative",
    "BadChoice",
    "BaseFallback",
    "BuildPurpose",
    "Cancellation",
    "CapacityReservation",
    "CellQueries",
    "ChoicePolicy",
    "Choosing",
    "Chosen",
    "ClaimPart",
    "ComeAgain",
    "DeadLetterRequest",
    "Deletes",
    "EndedInstance",
    "Ending",
    "Fallback",
    "FallbackAnswer",
    "Fenced",
    "FoundHosts",
    "HasReservations",
    "HeldAllocations",
    "HostBook",
    "HostFacts",
    "HostLimit",
    "HostsNow",
    "KnownHosts",
    "MoreRules",
    "Narrowing",
    "NoNarrowing",
    "Number",
    "Order",
    "OrderSection",
    "Orders",
    "PartsOf",
    "Pick",
    "PlacementQueries",
    "PlacingOutcome",
    "Publish",
    "Purpose",
    "Ranking",
    "RefusalRecords",
    "Remedies",
    "Replayed",
    "Roster",
    "Rule",
    "RuleError",
    "Scheduler",
    "SchedulerNeeds",
    "SchedulerOptions",
    "SchedulerPart",
    "Scope",
    "Settled",
    "Shortage",
    "TakenOver",
    "Tally",
    "Together",
    "Unfit",
    "Verdict",
    "View",
    "Weigher",
    "all_helps",
    "alternates_of",
    "array_rule",
    "attempts_of",
    "capacities",
    "claims_of",
    "decisions",
    "drawn",
    "events",
    "failed",
    "filter_names",
    "late_after",
    "leaders",
    "log",
    "masks_of",
    "on_closed",
    "only_on",
    "place_of",
    "plain_scheduler",
    "postponed",
    "prepared_in_parts",
    "providers_of",
    "replay",
    "scores_of",
    "sections_of",
    "together",
    "unplaceable",
    "with_changes",
    "with_ended",
]
