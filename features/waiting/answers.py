"""Answers questions about the waiting requests of all schedulers, from the database."""

from collections.abc import Collection, Mapping

import msgspec
from msgspec import structs

from bus.clock import moment_text
from bus.decisions import Decision
from bus.parts import DecisionParts
from bus.queries import DecisionFound, FindWaiting, HeldHost, WaitingFound, WaitingRequest
from bus.vocabulary import Id
from features.waiting.core.shares import shares_of
from features.waiting.messages import priority_of
from features.waiting.start_estimates import Listed
from features.waiting.store import WaitingStore
from features.waiting.tables import listing, queued
from features.waiting.tables import weights as weights_table
from features.waiting.tables.queued import FoundQueued, OtherScheduler

KINDS = 50  # equivalence classes in one answer

_served = msgspec.json.Decoder(dict[str, float]).decode


class WaitingAnswers:
    """Finds waiting requests, why they wait, and the hosts held for them."""

    def __init__(self, store: WaitingStore) -> None:
        self._store = store

    async def waiting(self, question: FindWaiting) -> WaitingFound:
        """Return the waiting requests of all schedulers from the database."""
        store = self._store
        async with store.database.read() as tx:
            found = await listing.waiting(tx, question)
            count = await listing.count(tx, question.project)
            by_project = await listing.counts(tx, question.projects)
            kinds = await listing.kinds(tx, question.project, KINDS)
            roster = await queued.roster(tx)
            backlogged = {} if question.requests else await queued.new_counts(tx)
            weights = {} if question.requests else await weights_table.weights(tx)
        end = question.after + len(found)
        return WaitingFound(
            waiting=tuple(self._with_hosts(store.starts.estimated(found, store.queues, roster), roster)),
            count=count,
            kinds=tuple(kinds),
            rescued=sum(scheduler.rescued for scheduler in roster),
            more=end if not question.requests and end < count else None,
            by_project=by_project,
            backlog=backlogged,
            weights=weights,
            shares=shares_of(_served(scheduler.served) for scheduler in roster if scheduler.served),
            holds=tuple(held for held in self.held(roster) if held.root in question.on),
        )

    async def projects_of(self, ids: Collection[Id]) -> Mapping[Id, str]:
        """Return, by id, the project of each build or request that waits for a host."""
        async with self._store.database.read() as tx:
            return await listing.projects_of(tx, ids)

    async def explain(self, id_: Id, ended: DecisionFound) -> DecisionFound:
        """Return which capacity a request lacks while it waits. If it does not wait, return the decision
        `ended` with the hosts that it names and that are held for waiting requests.
        """
        store = self._store
        async with store.database.read() as tx:
            found = await queued.find(tx, id_)
            if found is None or not store.can_read(found.queued):
                held = held_named(ended.decision, self.held(await queued.roster(tx)))
                return structs.replace(ended, held=held)
            entry = found.queued
            listed = await listing.waiting(tx, FindWaiting(requests=(entry.request,)))
            roster = await queued.roster(tx)
        start_p50, start_p90 = self._expected(found, listed, roster)
        return DecisionFound(
            known=True,
            request=entry.message,
            builds=entry.message.instances if entry.subject is None else (entry.subject.instance,),
            reason=entry.lacks,
            decision=entry.decision,
            at=entry.since,
            waits=True,
            until=entry.until,
            wakes=entry.wakes,
            parts=DecisionParts() if entry.subject is None else store.purpose_of(entry).decision_parts(entry),
            start_p50=start_p50,
            start_p90=start_p90,
            held=held_named(entry.decision, self.held(roster), entry.request),
        )

    def held(self, roster: list[OtherScheduler]) -> list[HeldHost]:
        """Return the hosts that the schedulers of `roster` hold for waiting requests."""
        source = self._store.fitting.source
        holds = [hold for scheduler in roster for hold in queued.holds_of(scheduler)]
        names = {host.uuid: host.host for host in source.hosts()} if holds else {}
        return [
            HeldHost(
                root=hold.root,
                host=names[hold.root],
                request=hold.request,
                project=hold.project,
                since=hold.since,
                until=hold.until,
            )
            for hold in holds
            if hold.root in names
        ]

    def _expected(
        self, found: FoundQueued, listed: Listed, roster: list[OtherScheduler]
    ) -> tuple[float | None, float | None]:
        """Return when a request will start, or will be evaluated if it is in the backlog."""
        message = found.queued.message
        if found.before is not None:
            before, priority = {found.owner: found.before}, priority_of(message.parts)
            start = self._store.starts.expected_evaluation(message.project, priority, before, roster)
            return start or (None, None)
        for request in self._store.starts.estimated(listed, self._store.queues, roster):
            return request.start_p50, request.start_p90
        return None, None

    def _with_hosts(self, found: list[WaitingRequest], roster: list[OtherScheduler]) -> list[WaitingRequest]:
        by_request: dict[Id, list[HeldHost]] = {}
        for held in self.held(roster):
            by_request.setdefault(held.request, []).append(held)
        answers = []
        for waits in found:
            held_for = by_request.get(waits.request, [])
            hosts = ", ".join(f"{held.host} since {moment_text(held.since)}" for held in held_for[:3])
            more = f" and {len(held_for) - 3} more" if len(held_for) > 3 else ""
            wakes = f"{waits.wakes}; held for it: {hosts}{more}" if hosts else waits.wakes
            answers.append(structs.replace(waits, wakes=wakes, held=tuple(held_for)))
        return answers


def held_named(decision: Decision, held: list[HeldHost], request: Id = "") -> tuple[HeldHost, ...]:
    """Return the hosts held for requests other than `request` that a decision names as reserved."""
    names = {miss.host for miss in decision.nearest if miss.code == "reserved"}
    names.update(*(removal.hosts for removal in decision.removals if removal.code == "reserved"))
    return tuple(each for each in held if each.host in names and each.request != request)
