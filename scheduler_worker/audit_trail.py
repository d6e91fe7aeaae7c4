"""Stores and finds the records of the audit trail, and deletes old records."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from bus.audit_trail import PROCESS_RESTART, ActRecord, ActsFound, ActsRecorded, FindActs, Operator
from bus.clock import Clock
from bus.delivery.recording import message_uuid
from bus.errors import Poison
from bus.messages import NO_CELL, ProcessRestarted
from bus.sql.database import Database
from bus.sql.statement import Transaction, deletes_oldest, sql

PRUNED = 1000  # records deleted in one transaction

_FINALITY = {"started": 0, "failed": 1}  # other outcomes: 2; an act's record never becomes less final
_COLUMNS = (
    "operator", "role", "operator_project", "interface", "act", "target", "target_name", "project", "request",
    "outcome", "record",
)  # fmt: skip
_PUT = sql(f"""
    INSERT INTO acts (id, at, program, finality, {", ".join(_COLUMNS)})
    SELECT n.id, n.at, n.program, n.finality, {", ".join(f"n.{name}" for name in _COLUMNS)}
    FROM {{n: id str, at float, program bool, finality int, {", ".join(f"{name} str" for name in _COLUMNS)}}}
    WHERE true
    ON CONFLICT (id) DO UPDATE SET finality = excluded.finality, target = excluded.target,
    target_name = excluded.target_name, project = excluded.project, outcome = excluded.outcome,
    record = excluded.record
    WHERE excluded.finality >= acts.finality
""")
_FIND = sql("""
    SELECT id, at, record FROM acts
    WHERE at >= :since AND (at < :until OR at = :until AND id < :before)
    AND (:operator = '' OR operator = :operator) AND (:role = '' OR role = :role)
    AND (:interface = '' OR interface = :interface) AND (:act = '' OR act = :act)
    AND (:target = '' OR target = :target OR target_name = :target
    OR target LIKE '% more' AND record LIKE :among)
    AND (:project = '' OR project = :project OR operator_project = :project)
    AND (:request = '' OR request = :request) AND (:outcome = '' OR outcome = :outcome)
    AND (:id = '' OR id LIKE :begins OR request LIKE :begins)
    ORDER BY at DESC, id DESC LIMIT :most
""")
_RECORDED = sql("""
    SELECT DISTINCT n.id FROM {n: id str, operator str, act str, target str, request str, outcome str}
    JOIN acts a ON a.target = n.target AND a.request = n.request AND a.operator = n.operator
    AND a.act = n.act AND a.outcome = n.outcome AND a.id <> n.id
""")
_PRUNE = deletes_oldest("acts", "id", where="program = :program")
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(ActRecord).decode
_FILTERS = ("operator", "role", "interface", "act", "target", "project", "request", "outcome", "id")
_PAGE_CHARACTERS = 250_000  # characters of the records in one answer, which is limited to 1 MiB
_LATEST = 1e12  # a time (seconds since 1970) after all records


async def put(tx: Transaction, records: Sequence[ActRecord]) -> None:
    """Store audit records. Of several records with one id, the most final one is stored (`started` is less
    final than `failed`, and `failed` than any other outcome); among equally final ones, the latest.

    The record of a repeated delivery is stored only if no record of the same request is.
    """
    records = await _without_repeated(tx, records)
    latest: dict[str, ActRecord] = {}
    for record in records:
        known = latest.get(record.id)
        if known is None or _finality(record) >= _finality(known):
            latest[record.id] = record
    await _PUT(tx, [_row(latest[id_]) for id_ in sorted(latest)])


async def _without_repeated(tx: Transaction, records: Sequence[ActRecord]) -> Sequence[ActRecord]:
    repeated = {record.id: record for record in records if record.repeated}
    if not repeated:
        return records
    keys = {_request_of(record) for record in records if not record.repeated}
    known = {id_ for id_, record in repeated.items() if _request_of(record) in keys}
    values = [(id_, *_request_of(record)) for id_, record in sorted(repeated.items())]
    known |= {row["id"] for row in await _RECORDED(tx, values)}
    return [record for record in records if record.id not in known]


def _request_of(record: ActRecord) -> tuple[str, str, str, str, str]:
    return record.operator.name, record.act, record.target, record.request, record.outcome


def _finality(record: ActRecord) -> int:
    """Return how final the outcome of a record is: the record with the highest number is stored."""
    return _FINALITY.get(record.outcome, 2)


def _row(record: ActRecord) -> tuple[object, ...]:
    operator = record.operator
    texts = (operator.name, operator.role, operator.project, record.interface, record.act, record.target)
    rest = record.name, record.project, record.request, record.outcome, _encode(record).decode()
    return record.id, record.at, operator.is_program, _finality(record), *texts, *rest


def _of_restart(restart: ProcessRestarted) -> ActRecord:
    return ActRecord(
        id=message_uuid(f"{PROCESS_RESTART} {restart.process} {restart.machine} {restart.at!r}"),
        at=restart.at,
        operator=Operator(name="berth", is_program=True),
        interface="bus",
        origin=restart.machine,
        act=PROCESS_RESTART,
        target=restart.process,
        cell="" if restart.cell == NO_CELL else restart.cell,
        outcome="done",
        detail="it had ended without being stopped",
    )


class AuditTrail:
    """The audit trail in a scheduler's database. `keep` is the retention time, `keep_programs` the shorter
    retention time of acts of clients and services.
    """

    def __init__(self, database: Database, clock: Clock, keep: float, keep_programs: float) -> None:
        self._database = database
        self._clock = clock
        self._keep = {False: keep, True: keep_programs}

    async def record_many(self, messages: Sequence[ActsRecorded]) -> Sequence[Poison | None]:
        """Store the records of many messages in one transaction."""
        async with self._database.write() as tx:
            await put(tx, [record for message in messages for record in message.records])
        return [None] * len(messages)

    async def record_restarts(self, messages: Sequence[ProcessRestarted]) -> Sequence[Poison | None]:
        """Store restarts of processes as acts of berth; a repeated message changes nothing."""
        async with self._database.write() as tx:
            await put(tx, [_of_restart(message) for message in messages])
        return [None] * len(messages)

    async def find(self, question: FindActs) -> ActsFound:
        """Return a page of records, latest first."""
        until, _, before = question.before.partition(" ")
        latest = float(until) if before else question.until or _LATEST
        filters: dict[str, Any] = {name: getattr(question, name) for name in _FILTERS}
        # `targets` is the last field of a record's JSON, so no other field matches.
        filters["among"] = f'%"targets":[%{_encode(question.target).decode()}%'
        filters["begins"] = f"{question.id}%"
        async with self._database.read() as tx:
            rows = await _FIND(
                tx, since=question.since, until=latest, before=before, most=question.limit, **filters
            )
        page = list(rows)
        while len(page) > 1 and sum(len(row["record"]) for row in page) > _PAGE_CHARACTERS:
            page = page[: len(page) // 2]
        more = len(page) < len(rows) or len(rows) == question.limit
        last = f"{page[-1]['at']!r} {page[-1]['id']}" if more else ""
        return ActsFound(records=tuple(_decode(row["record"]) for row in page), last=last)

    async def prune(self) -> None:
        """Delete records older than their time to keep, which is shorter for acts of programs."""
        for program, keep in self._keep.items():
            await self._database.delete_old(partial(_prune, program), self._clock.now() - keep, PRUNED)


async def _prune(program: bool, tx: Transaction, before: float, most: int) -> int:
    return len(await _PRUNE(tx, program=program, before=before, most=most))
