"""Command `python -m tests.simulation.oracle`: hashes of everything that worlds publish and store.

An oracle world is a simulated world without crashes, reordering and duplicates. What its workers publish and
store depends on their decisions only, not on the number of their awaits: each message reaches its queue at a
virtual time that follows from the seed and from the client's ids in it, and queries take no virtual time.
So a change of form leaves the recorded hashes equal, and a change of behaviour names the topic or table.
"""

import argparse
import asyncio
import hashlib
import json
import logging
import random
import re
import sqlite3
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any

import msgspec

from bus import topics
from bus.local import Chaos
from bus.local.broker import LocalQueue
from bus.protocol import Envelope
from bus.topics import matches
from tests.simulation.broker import SimulatedBroker, SimulatedTransport
from tests.simulation.faults import FaultRates
from tests.simulation.random_requests import GROUPS, ZONES
from tests.simulation.world import START, SimulatedWorld
from tests.support.databases import inline_connection
from tests.support.virtual_time import run

RECORDED = Path(__file__).with_name("oracle.json")
BLOCK = 25  # seeds that share a hash for each topic and table
_REQUESTS = 6  # of a world
_LAST = 0.5  # seconds without the messages of requests, at the end of a world
_LEAST, _LONGEST = 0.001, 0.02  # seconds until a message arrives
_CALM = FaultRates(reorder=0.0, duplicate=0.0, late_copies=0.0, crashes=0, waits=0.3)
# A time in seconds, or in microseconds as in sequences of reports, whose last digit depends on rounding.
_TIME = re.compile(rf"{str(START)[:5]}\d{{5}}(?:\.\d+|\d{{6}})?")
_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|\b[0-9a-f]{8,32}\b")
_DIGEST = re.compile(r"[0-9a-f]{12}")  # of an equivalence class of requests
# Surrogate keys of placement's tables: column → the table and the column that replace it.
_KEYS = {
    "resource_provider_id": ("resource_providers", "uuid"),
    "parent_provider_id": ("resource_providers", "uuid"),
    "root_provider_id": ("resource_providers", "uuid"),
    "resource_class_id": ("resource_classes", "name"),
    "trait_id": ("traits", "name"),
    "aggregate_id": ("aggregates", "uuid"),
    "consumer_id": ("consumers", "uuid"),
    "consumer_type_id": ("consumer_types", "name"),
    "project_id": ("projects", "external_id"),
    "user_id": ("users", "external_id"),
    "group_id": ("server_groups", "uuid"),
}
# The log of changes, whose batches depend on the times of commits; its content is that of the other tables.
_NOT_COMPARED = (
    "migrations",
    "sqlite_sequence",
    "changes",
    "change_log",
    "archived_changes",
    "archived_snapshots",
)


class _FixedChance(random.Random):
    """Random numbers that do not depend on how many were drawn before; only ids of 128 bits differ."""

    drawn = 0

    def random(self) -> float:
        return 0.5

    def getrandbits(self, k: int, /) -> int:
        if k < 64:
            return 0
        self.drawn += 1
        digest = hashlib.sha256(f"{self.drawn}".encode()).digest()
        return int.from_bytes(digest) & ((1 << k) - 1)


class OracleBroker(SimulatedBroker):
    """Delivers each message of a topic alone, at a time that follows from its ids."""

    world: "OracleWorld"

    def __init__(self, world: "OracleWorld") -> None:
        super().__init__(world, Chaos(random.Random(0)), random.Random(0))
        self._seen: Counter[tuple[str, ...]] = Counter()

    def put(self, queue: LocalQueue, envelope: Envelope, *, seconds: float = 0.0) -> None:
        if topic_of(envelope.key):
            seconds += self._seconds(queue.spec.name, envelope)
        super().put(queue, envelope, seconds=seconds)

    def _seconds(self, name: str, envelope: Envelope) -> float:
        ids = sorted(set(_ID.findall(bytes(envelope.body).decode())) & self.world.known_ids())
        place = (name.partition(":")[0], envelope.key, *ids)
        self._seen[place] += 1
        return _LEAST + _share(self.world.seed, *place, self._seen[place]) * _LONGEST


class OracleTransport(SimulatedTransport):
    broker: OracleBroker

    async def publish(self, envelopes: Sequence[Envelope], *, expected: Sequence[bool]) -> None:
        for envelope in envelopes:
            self.broker.world.record(envelope)
        await super().publish(envelopes, expected=expected)


class OracleWorld(SimulatedWorld):
    """A world whose messages and rows follow from its seed and from the decisions of its workers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.compact = self.loses_changes = self.forgetful = self.reclasses = False
        self.published: dict[str, list[tuple[float, str]]] = {}
        self.rows: dict[str, list[str]] = {}
        self._ids = random.Random(f"ids of {self.seed}")
        self._awaits = random.Random(f"awaits of {self.seed}")
        self.perturbed = False
        self._known = {each.group for each in GROUPS} | {each.aggregate for each in ZONES}
        self._known |= {host.root for host in self.hosts()}

    def workers_chance(self) -> random.Random:
        return _FixedChance()

    def make_broker(self) -> OracleBroker:
        return OracleBroker(self)

    def connection(self) -> OracleTransport:
        return OracleTransport(self.broker)

    def new_id(self) -> str:
        digits = f"{self._ids.getrandbits(128):032x}"
        id_ = f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-8{digits[17:20]}-{digits[20:]}"
        self._known.add(id_)
        return id_

    def known_ids(self) -> set[str]:
        """Return the ids that no worker has made: those of hosts, groups, zones, and of the client."""
        return self._known

    async def before_publishing(self) -> None:
        """Publish at once: nothing is killed here, and random waits would depend on the sequence of tasks."""

    async def _pause(self) -> None:
        """With `perturbed`, let other tasks run a random number of times, which must not change a hash."""
        for _ in range(self._awaits.randint(0, 3) if self.perturbed else 0):
            await asyncio.sleep(0)

    def record(self, envelope: Envelope) -> None:
        topic = topic_of(envelope.key)
        if topic and topic != topics.PLACEMENT_CHANGED.pattern:
            body = canonical(json.loads(bytes(envelope.body)))
            text = self._masked(f"{envelope.key} {json.dumps(body, sort_keys=True)}")
            self.published.setdefault(topic, []).append((self.time(), text))

    async def _run_workers(self) -> None:
        await super()._run_workers()
        end = self.time() - _LAST  # the number of awaits decides which periodic messages are the last
        for messages in self.published.values():
            messages[:] = [message for message in messages if message[0] < end]
        for name, database in self.databases.items():
            for table, rows in rows_of(inline_connection(database)).items():
                self.rows[f"{name}.{table}"] = sorted(self._masked(row) for row in rows)

    def _masked(self, text: str) -> str:
        """Return a text without times and without ids that workers made at random."""
        without_times = _TIME.sub("TIME", text)
        return _ID.sub(lambda found: found[0] if found[0] in self._known else "ID", without_times)

    def recorded(self) -> dict[str, list[str]]:
        """Return the messages of each topic in their sequence, and the rows of each table."""
        messages = {
            f"topic {name}": [text for _, text in sorted(each)] for name, each in self.published.items()
        }
        return messages | {f"table {name}": rows for name, rows in self.rows.items()}


@cache
def topic_of(key: str) -> str:
    """Return the pattern of the topic of a routing key; empty for queries and answers."""
    for topic in topics.TOPICS:
        address = topic.at().key
        if matches(address, key) or (topic.outsiders and matches(f"{address}.*", key)):
            return topic.pattern
    return ""


def rows_of(connection: sqlite3.Connection) -> dict[str, list[str]]:
    """Return the rows of each table as JSON objects, with the names of what surrogate keys refer to."""
    names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    keys = {
        column: dict(connection.execute(f"SELECT id, {value} FROM {table}").fetchall())
        for column, (table, value) in _KEYS.items()
        if table in names
    }
    found = {}
    for table in names:
        if table not in _NOT_COMPARED:
            cursor = connection.execute(f"SELECT * FROM {table}")
            columns = [column for column, *_ in cursor.description]
            rows = (dict(zip(columns, row, strict=True)) for row in cursor)
            found[table] = [_row(_FLAT.get(table, dict)(row), keys) for row in rows]
    return found


def _flat_build(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of a cell's builds with the states of features in the columns of before they had parts."""
    parts = msgspec.json.decode(row.pop("parts") or "{}")
    *story, added_hosts, new_spec = msgspec.json.decode(row["story"])
    move = parts.get("moves", {}).get("move")
    story += [*parts.get("preemptor", [[]]), parts.get("victim")]
    changed = [added_hosts, new_spec, move] if move is not None else None
    return row | {name: _text(value) for name, value in (("story", story), ("moved", changed))}


def _flat_decision(row: dict[str, Any]) -> dict[str, Any]:
    parts = msgspec.json.decode(row.pop("parts") or "{}")
    return row | {"move": _text(parts.get("moves", {}).get("request"))}


_FLAT: Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "builds": _flat_build,
    "decisions": _flat_decision,
}


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode() if value is not None else ""


def _row(row: Mapping[str, object], keys: Mapping[str, Mapping[object, object]]) -> str:
    shown = {
        column: keys[column].get(value) if column in keys else value
        for column, value in row.items()
        if not (column == "id" and isinstance(value, int)) and value not in (None, "")
    }
    return json.dumps(canonical(shown), sort_keys=True, default=str)


def canonical(value: object) -> object:
    """Return a JSON value in a form that does not depend on which fields of a message are parts of features:
    the fields of `parts` and `hints` are in the object that has these. Fields that are empty or have their
    default are left out, and JSON texts are decoded.
    """
    match value:
        case str() if value[:1] in ("{", "["):
            try:
                return canonical(json.loads(value))
            except ValueError:
                return value
        case list():
            return [canonical(each) for each in value]
        case dict():
            found: dict[str, object] = {}
            if "generation" in value and value.keys() & {"choices", "retire"}:  # of a claim or release
                compared = value["generation"] != "any"  # was the field `fenced`
                value = value | ({"fenced": True} if compared else {"generation": None})
            for name, each in value.items():
                inner = canonical(each)
                if name == "choice" and isinstance(inner, list) and isinstance(inner[-1], dict):
                    inner[2:] = [
                        field for part in inner[2:] for each in part.values() for field in each.values()
                    ]
                if name == "parts" and isinstance(inner, dict):
                    for part in inner.values():
                        found |= part
                elif name == "hints" and isinstance(inner, dict):
                    found |= inner
                elif inner not in (None, "", 0, [], {}) and (name, inner) != ("cidr", "/24"):
                    found[name] = inner
            if any(_DIGEST.fullmatch(name) for name in found):  # their sequence depends on the digests
                return sorted(found.values(), key=partial(json.dumps, sort_keys=True))
            return found
    return value


def _share(*of: object) -> float:
    """Return a number from 0 to 1 that follows from the values."""
    return int.from_bytes(hashlib.sha256(repr(of).encode()).digest()[:6]) / 2**48


def recorded_of(seed: int, *, perturbed: bool = False) -> dict[str, list[str]]:
    """Return what the world of a seed publishes and stores."""
    world = OracleWorld(
        seed,
        _CALM,
        requests=_REQUESTS,
        moves=seed % 4 in (1, 2),
        shared=seed % 4 == 3,
        preempts=seed % 3 == 1,
        full=seed % 6 == 1,
        headroom=seed % 10 == 5,
    )
    world.perturbed = perturbed
    run(world.run())
    return world.recorded()


def hashes_of_seed(seed: int, *, perturbed: bool = False) -> dict[str, str]:
    recorded = recorded_of(seed, perturbed=perturbed)
    return {name: hashlib.sha256("\n".join(texts).encode()).hexdigest() for name, texts in recorded.items()}


def hashes_of_block(seeds: Iterable[dict[str, str]]) -> dict[str, str]:
    """Return one hash for each topic and table over the hashes of several seeds."""
    joined: dict[str, list[str]] = {}
    for number, hashes in enumerate(seeds):
        for name, value in hashes.items():
            joined.setdefault(name, []).append(f"{number} {value}")
    return {
        name: hashlib.sha256("\n".join(joined[name]).encode()).hexdigest()[:16] for name in sorted(joined)
    }


def differences(recorded: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """Return the topics and tables whose hashes differ."""
    return sorted(name for name in recorded.keys() | found.keys() if recorded.get(name) != found.get(name))


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.oracle", description=__doc__)
    parser.add_argument("--seeds", default="0-199", help=f"FROM-TO, whole blocks of {BLOCK} (default: 0-199)")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default: 1)")
    parser.add_argument("--record", action="store_true", help="store the hashes instead of comparing them")
    parser.add_argument(
        "--perturb", action="store_true", help="vary the number of awaits; nothing may differ"
    )
    parser.add_argument("--dump", type=Path, help="write what each seed publishes and stores to this folder")
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> int:
    asked = _arguments(given)
    first, _, last = asked.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    if asked.dump:
        _dump(seeds, asked.dump, perturbed=asked.perturb)
        return 0
    if seeds.start % BLOCK or len(seeds) % BLOCK:
        sys.exit(f"--seeds {asked.seeds}: expected whole blocks, such as 0-{BLOCK - 1}")
    known: dict[str, dict[str, str]] = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    failures = 0
    with ProcessPoolExecutor(asked.jobs, initializer=logging.disable) as pool:
        results = pool.map(partial(hashes_of_seed, perturbed=asked.perturb), seeds, chunksize=5)
        for begin in range(seeds.start, seeds.stop, BLOCK):
            found = hashes_of_block([next(results) for _ in range(BLOCK)])
            different = [] if asked.record else differences(known.get(str(begin), {}), found)
            failures += bool(different)
            known[str(begin)] = found if asked.record else known.get(str(begin), {})
            said = "recorded" if asked.record else ", ".join(different) or "equal"
            print(f"{begin}-{begin + BLOCK - 1}: {said}", flush=True)
    if asked.record:
        RECORDED.write_text(json.dumps(known, indent=1) + "\n")
    return 1 if failures else 0


def _dump(seeds: Iterable[int], folder: Path, *, perturbed: bool) -> None:
    logging.disable()
    for seed in seeds:
        for name, texts in recorded_of(seed, perturbed=perturbed).items():
            file = folder / str(seed) / name.replace(" ", "_").replace("/", "_")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("\n".join(texts) + "\n")


if __name__ == "__main__":
    sys.exit(main())
