"""Claim rules: the extension point by which features judge claims and releases."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from bus.claims import ConsumerClaim
from bus.sql.statement import BoundStatement, Transaction
from placement_worker.core.capacity import ClaimJudge, ClaimWorld

# The rule of a feature for claims and releases. A transaction calls each active rule in this order:
# `prepare`, `needs`, `read`; for each claim `bars`, `before` and `after`, for each request `judge_request`
# and `accepted`; then `write` and `wakes`. ClaimJudge has the methods that decide in memory.


# The order in which every writer locks rows: consumers and providers of the claims, and the rows of rules.
LOCKS = ("consumers", "projects", "reservations", "groups", "providers", "change number")


@dataclass(slots=True)
class ClaimScope:
    """The rows that a transaction locks and reads for claims and releases. Rules add to it."""

    claims: Sequence[ConsumerClaim]  # empty: only releases
    new_consumers: dict[str, ConsumerClaim | None]  # consumers that may not exist yet, with their claims
    other_consumers: set[str]  # consumers that should exist
    providers: set[str] = field(default_factory=set)
    projects: set[str] = field(default_factory=set)
    cell: str = ""  # the cell that sent the requests
    locks: set[str] = field(default_factory=set)  # elements of LOCKS that rules lock
    reads_pools: bool = False  # True: read which providers are pools, such as shared storage
    leaves_holders: bool = False  # True: holder consumers get allocations
    unread: Collection[str] = ()  # consumers that an earlier attempt lacked
    state: dict[type[ClaimJudge], Any] = field(default_factory=dict)  # what rules have read before


class ClaimRule(ClaimJudge):
    """A rule of a feature for claims and releases. Its data of a transaction is in `world.state`, under its
    own type; a rule without data there is not asked again in this transaction.
    """

    # The element of LOCKS that `read` locks. "": it locks none, and reads last, when `world.providers` is
    # known. Rows of projects are locked by the kernel: `needs` adds them to `scope.projects`.
    locks: ClassVar[str] = ""

    async def prepare(self, scope: ClaimScope, now: float) -> None:
        """Read or write in an own transaction, before that of the requests; repeated after a conflict.
        `scope.state` gets what was read.
        """

    def needs(self, scope: ClaimScope) -> bool:
        """Return whether the rule concerns the requests; if so, add to `scope` what must be locked, and
        its `locks` to `scope.locks`.
        """
        return False

    async def read(self, tx: Transaction, scope: ClaimScope, world: ClaimWorld) -> None:
        """Lock and read the rule's rows, and set `world.state[type(self)]`."""

    def write(self, world: ClaimWorld) -> Iterable[BoundStatement]:
        """Yield the statements that store the rule's changes, to be executed before those of the kernel."""
        return ()

    async def wakes(self, tx: Transaction, world: ClaimWorld) -> Iterable[str]:
        """Return the keys (RuleRefused.wakes_on) of the refused claims that the commit may let succeed. Raise
        Conflict if the rule has judged by outdated data.
        """
        return ()
