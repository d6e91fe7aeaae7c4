"""The names of the scheduler that features may import, and what a scheduler gives to their parts.

A feature extends the scheduler by the purposes of orders, and by a `SchedulerPart` with narrowings and
fallbacks. The kernel calls a narrowing with the orders that it `concerns`; a plain boot is concerned by none.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bus.feature import PartNeeds
from bus.sql.database import Database
from scheduler_worker.agents import WaitingSignal
from scheduler_worker.core import events
from scheduler_worker.core.build_purpose import BUILD, BuildPurpose
from scheduler_worker.core.choosing import Choosing
from scheduler_worker.core.domain_rules import Constraints, DomainRules, attempts, required_constraints
from scheduler_worker.core.events import Chosen, ComeAgain, TakenOver
from scheduler_worker.core.fitting import unfit_image
from scheduler_worker.core.group_members import domain_rules, with_members
from scheduler_worker.core.helping import Tally
from scheduler_worker.core.host_hashes import drawn
from scheduler_worker.core.narrowing import (
    PLAIN,
    ClaimPart,
    HostLimit,
    JointChoice,
    Narrowing,
    NoNarrowing,
    Remedies,
    Scope,
)
from scheduler_worker.core.order import (
    MAX_CHOICES_EACH,
    EndedInstance,
    Order,
    Purpose,
    Settled,
    attempts_of,
    claims_of,
)
from scheduler_worker.core.policy import BadChoice, ChoicePolicy
from scheduler_worker.core.ranking import Ranking
from scheduler_worker.core.rejections import EXAMPLES, Shortage
from scheduler_worker.core.roles import RolePart, group_id, own_group, parts_of
from scheduler_worker.core.rule import AllowedHosts, Alternative, RuleError, Unfit
from scheduler_worker.core.scale import CapacityReservation, HasReservations, Pick, scores_of
from scheduler_worker.dependencies import (
    PLACEMENT_ASKED,
    TRIES_UNDELIVERABLE,
    Ending,
    HeldAllocations,
    Publish,
    SchedulerOptions,
    log,
    prepared_in_parts,
)
from scheduler_worker.help_search import REQUEST_SECONDS, all_helps, late_after
from scheduler_worker.host_arrays import (
    HostArrays,
    accepting,
    active_instances,
    amounts_on_host,
    on_closed,
    only_on,
)
from scheduler_worker.host_traits import cause_trait, close_host, force_down_host, open_host
from scheduler_worker.hosts import HostBook
from scheduler_worker.pending_choices import Supposing
from scheduler_worker.placing import Fallback, FallbackAnswer, Scheduler, SchedulerPart
from scheduler_worker.queries import CellQueries, PlacementQueries
from scheduler_worker.refusals import RefusalRecords
from scheduler_worker.store import decisions, leaders

__all__ = [
    "BUILD",
    "EXAMPLES",
    "MAX_CHOICES_EACH",
    "PLACEMENT_ASKED",
    "PLAIN",
    "REQUEST_SECONDS",
    "TRIES_UNDELIVERABLE",
    "AllowedHosts",
    "Alternative",
    "BadChoice",
    "BuildPurpose",
    "CapacityReservation",
    "CellQueries",
    "ChoicePolicy",
    "Choosing",
    "Chosen",
    "ClaimPart",
    "ComeAgain",
    "Constraints",
    "DomainRules",
    "EndedInstance",
    "Ending",
    "Fallback",
    "FallbackAnswer",
    "HasReservations",
    "HeldAllocations",
    "HostArrays",
    "HostBook",
    "HostLimit",
    "JointChoice",
    "Narrowing",
    "NoNarrowing",
    "Order",
    "PartsOf",
    "Pick",
    "PlacementQueries",
    "Publish",
    "Purpose",
    "Ranking",
    "RefusalRecords",
    "Remedies",
    "RolePart",
    "RuleError",
    "Scheduler",
    "SchedulerNeeds",
    "SchedulerPart",
    "Scope",
    "Settled",
    "Shortage",
    "Supposing",
    "TakenOver",
    "Tally",
    "Unfit",
    "WaitingSignal",
    "accepting",
    "active_instances",
    "all_helps",
    "amounts_on_host",
    "attempts",
    "attempts_of",
    "cause_trait",
    "claims_of",
    "close_host",
    "decisions",
    "domain_rules",
    "drawn",
    "events",
    "force_down_host",
    "group_id",
    "late_after",
    "leaders",
    "log",
    "on_closed",
    "only_on",
    "open_host",
    "own_group",
    "parts_of",
    "prepared_in_parts",
    "required_constraints",
    "scores_of",
    "unfit_image",
    "with_members",
]


@dataclass(frozen=True, kw_only=True)
class SchedulerNeeds(PartNeeds):
    """The objects that a scheduler gives to the parts of features. Until all parts were made, a part only
    reads the attributes of `scheduler`.
    """

    scheduler: Scheduler
    cells: CellQueries
    database: Database
    publish: Publish
    options: SchedulerOptions


PartsOf = Callable[[SchedulerNeeds], Sequence[SchedulerPart]]  # returns the parts in the order of their list
