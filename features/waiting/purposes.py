"""The extension point for waiting requests that boot no instance, such as moves of instances.

A join of waiting adds its `WaitingPurpose` to `WaitingStore.purposes`. Builds are evaluated by
`WaitingBuilds` and need no such object. A stored request of a purpose that is not in the list of features
stays stored, and is not evaluated.
"""

from collections.abc import Sequence
from typing import Protocol

from bus.parts import DecisionParts
from bus.vocabulary import Id, Message
from features.waiting.core.waiting_request import Subject
from features.waiting.results import Results, WaitEvaluator
from features.waiting.tables.queued import QueuedRequest
from scheduler_worker.extension import Fenced, Order, Purpose


class WaitingPurpose(WaitEvaluator, Protocol):
    """Evaluates, explains and ends waiting requests of one purpose of orders."""

    not_waiting: str  # answer to a cancellation of a request that has just ended

    @property
    def purpose(self) -> type[Purpose]:
        """Return the purpose of its orders."""

    def message_of(self, order: Order) -> Message:
        """Return the message that requested an order."""

    def subject_of(self, order: Order) -> Subject:
        """Return the subject to store with the request of an order."""

    def refused_for(self, order: Order, first: Id) -> Order:
        """Return an order as failed, because the request `first` waits for the same instance."""

    def conflict(self, first: QueuedRequest, again: QueuedRequest) -> Message | None:
        """Return the refusal of the request `again` if the stored request with its id has other content."""

    def can_read(self, subject: Subject) -> bool:
        """Return whether the stored data of a subject can be read."""

    def begin(self, entry: QueuedRequest) -> Order:
        """Return the order of a waiting request again."""

    async def recheck(self, waiting: Sequence[QueuedRequest]) -> Results:
        """Read the instances of waiting requests again, and return what became of these requests."""

    async def cancelled(self, entry: QueuedRequest, fenced: Fenced) -> Message:
        """Store the refusal of a cancelled request, and return the message to publish."""

    def decision_parts(self, entry: QueuedRequest) -> DecisionParts:
        """Return the parts of the decision of a waiting request."""
