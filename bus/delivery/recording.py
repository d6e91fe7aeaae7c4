"""Records the acts of an operator in the audit trail, and refuses acts that the operator's role does not
permit.

Every act of a command or of the control room passes `RecordingBus`. Before an act, a record with the outcome
`started` is published, so that no act is without a record, even if this process is killed. After the act, the
outcome is published under the same id.
"""

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from msgspec import structs

from bus import acts, topics
from bus.acts import MAX_NAME, READ, Act, State, Target
from bus.audit_trail import ActRecord, ActsRecorded, Interface, Operator, Outcome
from bus.delivery.runner import Bus
from bus.errors import AnswerRefused, BrokerRefused, OperationRefused, TooBig, Unavailable, Unroutable
from bus.masking import masked_text
from bus.projects import ProjectsFound
from bus.protocol import encode
from bus.topics import Query
from bus.vocabulary import Message, cause_of, portions_by_size

log = logging.getLogger(__name__)

A = TypeVar("A", bound=Message)
R = TypeVar("R", bound=Message)

STATE_SECONDS = 2.0  # limit for reading the state of a target; after it the act is done without the state
DELIVERY_SECONDS = 5.0  # limit for publishing a record
LARGEST_MESSAGE = 128 * 1024  # characters of records in one message, which has at most 1 MiB
_UNDELIVERED = (Unavailable, Unroutable, BrokerRefused, TooBig, TimeoutError)
_UNREAD = (*_UNDELIVERED, AnswerRefused)
_NAMESPACE = uuid.UUID("6f1c7d5e-3c0e-4f57-9a6e-0d4f5b1f7a11")


@dataclass(frozen=True, kw_only=True)
class Caller:
    """The operator of the current task, how the operator's acts arrive (`interface`, such as command or
    control room), and the id of the request.
    """

    operator: Operator
    interface: Interface
    through: str = ""
    origin: str = ""
    request: str = ""
    # In place of `request` in the ids of records, if the sender has chosen `request` and may use it again.
    nonce: str = ""

    def record(self, id_: str, at: float, act: str, target: Target) -> ActRecord:
        """Return the record of an act that begins now."""
        return ActRecord(
            id=id_,
            at=at,
            operator=self.operator,
            interface=self.interface,
            through=self.through[:MAX_NAME],
            origin=self.origin[:MAX_NAME],
            request=self.request[:MAX_NAME],
            act=act,
            target=target.id[:MAX_NAME],
            name=target.name[:MAX_NAME],
            cell=target.cell[:MAX_NAME],
            project=target.project[:MAX_NAME],
            targets=tuple([id_[:MAX_NAME] for id_ in target.ids]),
        )


caller: ContextVar[Caller | None] = ContextVar("berth_caller", default=None)


@dataclass
class _StartedAct:
    """An act in progress with its record, and the state of its target before the act, if it was read."""

    act: Act
    record: ActRecord
    query: State | None = None
    state: Message | None = None
    denied: str = ""  # why the operator may not do the act

    @property
    def target(self) -> Target:
        record = self.record
        return Target(record.target, record.name, record.cell, record.project)

    def ended(self, outcome: Outcome, detail: str = "", before: str = "", after: str = "") -> ActRecord:
        return structs.replace(
            self.record, outcome=outcome, detail=cause_of(detail), before=before, after=after
        )


class RecordingBus(Bus):
    """A connection to the bus that checks and records each act if the current task has a caller.

    If `identify` is set, it is called when the connection is opened, and returns the caller of all acts.
    """

    identify: Callable[[], Awaitable[Caller]] | None = None
    rehearses = False  # for `--dry-run`: acts are judged by `rehearse`, and never sent

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        if self.identify is not None:
            try:
                caller.set(await self.identify())
            except BaseException as problem:
                await self.__aexit__(type(problem), problem, problem.__traceback__)
                raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self.identify is not None:
            caller.set(None)
        await super().__aexit__(*exc)

    async def rehearse(self, *messages: Message) -> None:
        """Raise OperationRefused if the caller may not do the acts that these messages request. Nothing is
        sent or recorded. Acts of a client of berth are judged only when they are sent.
        """
        if (who := caller.get()) is None:
            return
        started = self._started(who, messages)
        await self._judged(who.operator, messages, started)
        if denied := [each.denied for each in started if each.denied]:
            raise OperationRefused(denied[0])

    def rehearse_act(self, name: str, target: str) -> None:
        """Raise OperationRefused if the caller may not do an act that no message requests."""
        who = caller.get()
        if who is not None and (why := acts.allowed(who.operator, acts.BY_NAME[name], Target(target))):
            raise OperationRefused(why)

    def check_rehearsal(self, messages: Sequence[Message]) -> None:
        """Raise RuntimeError if this connection of a dry run is to send an act: a defect of the command."""
        if self.rehearses and any(map(acts.act_of, messages)):
            raise RuntimeError(f"{type(messages[0]).__name__} in a dry run")

    async def publish(self, *messages: Message) -> None:
        self.check_rehearsal(messages)
        if caller.get() is None:
            await super().publish(*messages)
            return

        async def work(permitted: Sequence[Message]) -> Sequence[Message]:
            await Bus.publish(self, *permitted)
            return ()

        await self._perform(None, messages, work)

    def asker_of_many(
        self, query: Query[A, R], timeout: float = 10.0
    ) -> Callable[[Sequence[A]], Awaitable[Sequence[R]]]:
        ask_many = super().asker_of_many(query, timeout)

        async def ask(questions: Sequence[A]) -> Sequence[R]:
            self.check_rehearsal(questions)
            if caller.get() is None:
                return await ask_many(questions)
            return await self._perform(query, questions, ask_many)

        return ask

    @asynccontextmanager
    async def act(self, name: str, target: str, detail: str = "") -> AsyncIterator[None]:
        """Check an act that no message requests, such as the replay of a dead letter, and record it; the
        `with` block executes it.
        """
        if self.rehearses:
            raise RuntimeError(f"{name} in a dry run")
        who, act = caller.get(), acts.BY_NAME[name]
        if who is None:
            yield
            return
        record = who.record(self.clock.uuid(), self.clock.now(), name, Target(target))
        record = structs.replace(record, asked=cause_of(masked_text(detail)))
        started = _StartedAct(act, record, denied=acts.allowed(who.operator, act, Target(target)))
        await self._begin([started])
        try:
            yield
        except Exception as problem:
            await self.deliver([started.ended("failed", str(problem))])
            raise
        await self.deliver([started.ended("done")])

    async def note(self, who: Caller, act: str, target: str, outcome: Outcome, why: str = "") -> None:
        """Record an event that is not in the table of acts, such as a sign-in or a refused form."""
        record = who.record(self.clock.uuid(), self.clock.now(), act, Target(target))
        await self.deliver([structs.replace(record, outcome=outcome, detail=cause_of(why))])

    async def deliver(self, records: Sequence[ActRecord]) -> None:
        """Publish records. If they cannot be delivered, log that: the act itself must not fail."""
        try:
            async with asyncio.timeout(DELIVERY_SECONDS):
                for message in in_messages(records):
                    await Bus.publish(self, message)
        except _UNDELIVERED as problem:
            log.warning("%d acts are not in the audit trail: %s", len(records), problem or "no confirmation")

    async def _perform(
        self,
        query: Query[Any, Any] | None,
        messages: Sequence[A],
        work: Callable[[Sequence[A]], Awaitable[Sequence[R]]],
    ) -> Sequence[R]:
        who = caller.get()
        assert who is not None
        requested = [acts.act_of(message) for message in messages]
        if not all(requested):
            await self._check_reading(who, query, messages)
        if not any(requested):
            return await work(messages)
        started = self._started(who, messages)
        permitted = await self._judged(who.operator, messages, started)
        await self._begin(started)
        try:
            answers = await work(permitted)
        except Exception as problem:
            await self.deliver([each.ended("failed", str(problem)) for each in started])
            raise
        await self.deliver(await self._outcomes(started, answers))
        return answers

    def _started(self, who: Caller, messages: Sequence[Message]) -> list[_StartedAct]:
        """Return the acts that the messages request."""
        return [
            _StartedAct(act, self._record_of(who, act, message), acts.state_query(message))
            for message in messages
            if (act := acts.act_of(message)) is not None
        ]

    async def _check_reading(
        self, who: Caller, query: Query[Any, Any] | None, messages: Sequence[Message]
    ) -> None:
        """Raise OperationRefused if the caller's role does not permit a query. The control room checks the
        queries of its pages itself.
        """
        if who.interface == "control room":
            return
        targets = {acts.read_target(query, message) for message in messages}
        if why := next(filter(None, (acts.allowed(who.operator, READ, target) for target in targets)), ""):
            await self.note(who, READ.name, query.name if query else "", "denied", why)
            raise OperationRefused(why)

    async def _judged(
        self, operator: Operator, messages: Sequence[A], started: Sequence[_StartedAct]
    ) -> Sequence[A]:
        """Return the messages to send, and note in `started` the states of the targets, and which acts the
        operator may not do.
        """
        if all(acts.has_role(operator, each.act) for each in started):
            await self._read_states(started)
        owners = ProjectsFound()
        question = acts.owners_query([each for each in messages if acts.is_judged_by_owner(operator, each)])
        if question is not None:
            (owners,) = await Bus.asker_of_many(self, topics.PROJECTS)([question])
        permitted, acting = list[A](), iter(started)
        for message in messages:
            if acts.act_of(message) is not None:
                each = next(acting)
                each.denied, message = acts.judged(operator, message, owners, each.state)
            permitted.append(message)
        return permitted

    async def _begin(self, started: Sequence[_StartedAct]) -> None:
        """Publish the records before the acts; raise OperationRefused if one of the acts is not allowed."""
        if denied := [each for each in started if each.denied]:
            # with ids of their own: a later permitted try does not replace the record of a denial
            records = [each.ended("denied", each.denied) for each in denied]
            await self.deliver([structs.replace(record, id=self.clock.uuid()) for record in records])
            raise OperationRefused(denied[0].denied)
        await self.deliver([each.record for each in started])

    def _record_of(self, who: Caller, act: Act, message: Message) -> ActRecord:
        # An equal message within one command or HTTP request is a retry, so its record gets the same id.
        id_ = message_uuid(f"{who.nonce or who.request} {encode(message)!r}")
        target = acts.describe(message)
        record = who.record(id_, self.clock.now(), act.name, target)
        return structs.replace(record, asked=acts.asked_json(message))

    async def _read_states(self, started: Sequence[_StartedAct]) -> None:
        for each, state in zip(started, await self._states(started), strict=True):
            if state is not None:
                each.state, found = state, acts.completed(each.target, state)
                each.record = structs.replace(
                    each.record, name=found.name, cell=found.cell, project=found.project
                )

    async def _states(self, started: Sequence[_StartedAct]) -> list[Any]:
        """Return the state of each act's target; None if the state is unknown."""

        async def read(each: _StartedAct) -> Any:
            if each.query is None:
                return None
            query, question = each.query
            try:
                return (await Bus.asker_of_many(self, query, STATE_SECONDS)([question]))[0]
            except _UNREAD:
                return None

        return await asyncio.gather(*map(read, started))

    async def _outcomes(self, started: Sequence[_StartedAct], answers: Sequence[Message]) -> list[ActRecord]:
        if not answers:  # the acts were published, not queried: their results are not known yet
            return [
                each.ended("done", before=acts.state_json(each.state) if each.state else "")
                for each in started
            ]
        ended = []
        for each, answer, after in zip(started, answers, await self._states(started), strict=True):
            why = acts.refusal(answer)
            states = acts.difference(each.state, after) if each.state and after else ("", "")
            ended.append(each.ended("refused" if why else "done", why, *states))
        return ended


def message_uuid(text: str) -> str:
    """Return the id for the record of an act, derived from this text about its message, so that a repeated
    delivery of the message has the same id.
    """
    return str(uuid.uuid5(_NAMESPACE, text))


def in_messages(records: Sequence[ActRecord]) -> Iterator[ActsRecorded]:
    """Yield messages that contain the records, each smaller than the limit of a message."""
    for some in portions_by_size(records, _size_of, LARGEST_MESSAGE):
        yield ActsRecorded(records=tuple(some))


def _size_of(record: ActRecord) -> int:
    texts = record.asked, record.before, record.after, record.detail, *record.targets
    return sum(map(len, texts)) + 4 * len(texts) + 1000
