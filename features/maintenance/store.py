"""The SQL of maintenance windows, automatic evacuations and their events."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import msgspec

from bus.sql.statement import Transaction, sql
from features.maintenance.messages import (
    HostEvacuation,
    MaintenanceEvent,
    MaintenanceWindow,
    WindowHost,
    WindowState,
)

PAGE = 1000

_encode = msgspec.json.Encoder().encode
_window = msgspec.json.Decoder(MaintenanceWindow).decode
_host = msgspec.json.Decoder(WindowHost).decode
_evacuation = msgspec.json.Decoder(HostEvacuation).decode


@dataclass(frozen=True)
class StoredWindow:
    """A window with its hosts, and the hosts whose maintenance an operator has ended."""

    state: WindowState
    finished: frozenset[str]


async def add_window(tx: Transaction, window: MaintenanceWindow, hosts: Iterable[WindowHost]) -> bool:
    """Store a maintenance window with its hosts; return False if a window of this id is stored already."""
    if not await _ADD_WINDOW(tx, [(window.id, _json(window))]):
        return False
    await _ADD_HOSTS(tx, [(window.id, host.root, _json(host)) for host in hosts])
    return True


async def windows(tx: Transaction, *, ended: bool = False, begin: str = "") -> list[StoredWindow]:
    """Return the maintenance windows with ids that begin with `begin`, with their hosts, sorted by id.
    Windows that are over are included only with `ended`.
    """
    rows = await _WINDOWS(tx, ended=ended, ids=f"{begin}%")
    hosts: dict[str, list[WindowHost]] = {}
    finished: dict[str, set[str]] = {}
    for row in await _HOSTS(tx, [(row["id"],) for row in rows]):
        hosts.setdefault(row["id"], []).append(_host(row["record"]))
        if row["finished"]:
            finished.setdefault(row["id"], set()).add(row["root"])
    found = []
    for row in rows:
        window = _window(row["record"])
        places = {root: place for place, root in enumerate(window.roots)}
        state = WindowState(
            window=window,
            hosts=tuple(sorted(hosts.get(window.id, ()), key=lambda host: places[host.root])),
            drain_begins=row["drain_begins"],
            empty_at=row["empty_at"],
            measured=row["measured"],
            ended=row["ended"],
            cancelled=bool(row["cancelled"]),
        )
        found.append(StoredWindow(state, frozenset(finished.get(window.id, ()))))
    return found


async def change_window(tx: Transaction, window: MaintenanceWindow) -> int:
    """Replace a window that has not ended; return the number of changed rows."""
    return len(await _CHANGE(tx, id=window.id, record=_json(window)))


async def cancel(tx: Transaction, window: str) -> int:
    """Cancel a window; return the number of changed rows."""
    return len(await _CANCEL(tx, id=window))


async def finish(tx: Transaction, roots: Iterable[str]) -> int:
    """Record that the maintenance of these hosts is finished in windows that have not ended; return the
    number of hosts.
    """
    return len(await _FINISH(tx, [(root,) for root in sorted(roots)]))


async def put_window(tx: Transaction, state: WindowState, hosts: Iterable[WindowHost]) -> None:
    """Store the changed hosts of a maintenance window, the estimates of its drains, and its end."""
    estimates = {name: getattr(state, name) for name in ("drain_begins", "empty_at", "measured")}
    await _PUT_WINDOW(tx, id=state.window.id, ended=state.ended, **estimates)
    rows = [(state.window.id, host.root, _json(host)) for host in hosts]
    if rows:
        await _PUT_HOSTS(tx, rows)


async def evacuations(tx: Transaction, *, over: bool = False, begin: str = "") -> list[HostEvacuation]:
    """Return the evacuations in progress, or with `over` those that are over, whose ids begin so."""
    rows = await _EVACUATIONS(tx, over=over, ids=f"{begin}%")
    return [
        msgspec.structs.replace(_evacuation(row["record"]), released=bool(row["released"])) for row in rows
    ]


async def put_evacuations(tx: Transaction, changed: Iterable[HostEvacuation]) -> None:
    rows = [(each.id, each.root, not each.is_over, _json(each)) for each in changed]
    if rows:
        await _PUT_EVACUATIONS(tx, rows)


async def release(tx: Transaction, ids: Iterable[str]) -> int:
    """Record that an operator has released these open evacuations from the rate limit; return
    their number.
    """
    return len(await _RELEASE(tx, [(id_,) for id_ in sorted(ids)]))


async def record(tx: Transaction, events: Iterable[MaintenanceEvent]) -> None:
    """Store events of windows and evacuations, for their history."""
    rows = [(event.subject, event.at, event.event, event.detail) for event in events]
    if rows:
        await _RECORD(tx, rows)


async def events(tx: Transaction, subjects: Collection[str]) -> list[MaintenanceEvent]:
    """Return the events of these windows and evacuations."""
    rows = await _EVENTS(tx, [(subject,) for subject in sorted(subjects)])
    names = MaintenanceEvent.__struct_fields__
    return [MaintenanceEvent(**{name: row[name] for name in names}) for row in rows]


async def prune(tx: Transaction, before: float) -> None:
    """Delete windows and evacuations that ended before a time, with their events."""
    old = [stored.state for stored in await windows(tx, ended=True)]
    ids = [state.window.id for state in old if 0 < state.ended < before]
    ids += [each.id for each in await evacuations(tx, over=True) if each.is_over and each.at < before]
    for statement in _PRUNE:
        await statement(tx, [(id_,) for id_ in sorted(ids)[:PAGE]])


def _json(value: msgspec.Struct) -> str:
    return _encode(value).decode()


_ADD_WINDOW = sql("""
    INSERT INTO maintenance_windows (id, cancelled, drain_begins, empty_at, ended, measured, record)
    SELECT n.id, false, 0, 0, 0, 0, n.record FROM {n: id str, record str} WHERE true
    ON CONFLICT (id) DO NOTHING RETURNING id
""")
_ADD_HOSTS = sql("""
    INSERT INTO maintenance_hosts (id, root, finished, record)
    SELECT n.id, n.root, false, n.record FROM {n: id str, root str, record str} WHERE true RETURNING root
""")
_WINDOWS = sql("""
    SELECT id, cancelled, drain_begins, empty_at, ended, measured, record FROM maintenance_windows
    WHERE id LIKE :ids AND (ended = 0 OR CAST(:ended AS boolean)) ORDER BY id
""")
_HOSTS = sql("""
    SELECT id, root, finished, record FROM maintenance_hosts WHERE id IN (SELECT n.id FROM {n: id str})
""")
_CHANGE = sql("""
    UPDATE maintenance_windows SET record = :record WHERE id = :id AND ended = 0 AND NOT cancelled
    RETURNING id
""")
_CANCEL = sql("""
    UPDATE maintenance_windows SET cancelled = true WHERE id = :id AND ended = 0 AND NOT cancelled
    RETURNING id
""")
_FINISH = sql("""
    UPDATE maintenance_hosts SET finished = true WHERE root IN (SELECT n.root FROM {n: root str})
    AND NOT finished AND id IN (SELECT id FROM maintenance_windows WHERE ended = 0) RETURNING root
""")
_PUT_WINDOW = sql("""
    UPDATE maintenance_windows SET drain_begins = CAST(:drain_begins AS double precision),
    empty_at = CAST(:empty_at AS double precision), ended = CAST(:ended AS double precision),
    measured = CAST(:measured AS integer) WHERE id = :id RETURNING id
""")
_PUT_HOSTS = sql("""
    UPDATE maintenance_hosts SET record = n.record FROM {n: id str, root str, record str}
    WHERE maintenance_hosts.id = n.id AND maintenance_hosts.root = n.root RETURNING maintenance_hosts.root
""")
_EVACUATIONS = sql("""
    SELECT released, record FROM host_evacuations WHERE id LIKE :ids AND (open OR CAST(:over AS boolean))
    ORDER BY id
""")
_PUT_EVACUATIONS = sql("""
    INSERT INTO host_evacuations (id, root, open, released, record)
    SELECT n.id, n.root, n.open, false, n.record FROM {n: id str, root str, open bool, record str} WHERE true
    ON CONFLICT (id) DO UPDATE SET open = excluded.open, record = excluded.record RETURNING id
""")
_RELEASE = sql("""
    UPDATE host_evacuations SET released = true WHERE id IN (SELECT n.id FROM {n: id str}) AND open
    AND NOT released RETURNING id
""")
_RECORD = sql("""
    INSERT INTO maintenance_events (subject, at, event, detail)
    SELECT n.subject, n.at, n.event, n.detail
    FROM {n: subject str, at float, event str, detail str} WHERE true
    ON CONFLICT (subject, at, event) DO NOTHING RETURNING subject
""")
_EVENTS = sql("""
    SELECT subject, at, event, detail FROM maintenance_events
    WHERE subject IN (SELECT n.subject FROM {n: subject str}) ORDER BY at, event, detail
""")
_PRUNE = (
    sql("DELETE FROM maintenance_windows WHERE id IN (SELECT n.id FROM {n: id str}) RETURNING id"),
    sql("DELETE FROM maintenance_hosts WHERE id IN (SELECT n.id FROM {n: id str}) RETURNING id"),
    sql("DELETE FROM host_evacuations WHERE id IN (SELECT n.id FROM {n: id str}) RETURNING id"),
    sql("DELETE FROM maintenance_events WHERE subject IN (SELECT n.id FROM {n: id str}) RETURNING event"),
)
