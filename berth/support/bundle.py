"""Collects the files of a support bundle. If a server or worker does not answer, its part is missing, and the
bundle contains the reason.
"""

import asyncio
import importlib.metadata
import io
import json
import platform
import re
import tarfile
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from berth import __version__, composition
from berth.configuration import Effective
from berth.doctor.judgement import exit_code, judged
from berth.doctor.looking import inspect
from berth.kit.refusals import single_errors
from berth.logs import secrets_of, without_secrets
from berth.settings import Settings
from berth.support import stores
from berth.support.processes import ProcessSupport, ask, sockets
from berth.worker_roles import Role
from bus import parts
from bus.clock import Clock, time_text
from bus.delivery.runner import Bus
from bus.errors import Unavailable

PART_SECONDS = 40.0  # time limit for a part of the bundle, in addition to the time of sampling
BROKER_SECONDS = 10.0  # time limit to read the dead letters of a broker
LETTERS = 1000  # dead letters of each broker, the oldest
HANDLERS = 50  # the handlers that took most time

_README = """Support bundle of berth {version}, made at {time} UTC on {machine}.

settings.json      settings and their sources; passwords are replaced by ****
versions.json      versions of berth, Python, the operating system and all installed packages
doctor.json        findings of `berth doctor`, and what it observed: brokers, queues, databases, workers
databases/         for each database: sizes of tables, open transactions, and statements that took most time
dead_letters.json  dead letters without their bodies
slow.json          handlers of messages and queries by the time that they took
processes/         for each process: state.txt, metrics.txt, warnings.log, stacks.folded (for a viewer
                   of flame graphs, such as speedscope)

Missing parts: {missing}
"""


@dataclass
class SupportBundle:
    """The files of a support bundle by name, and why parts are missing."""

    secrets: Sequence[str] = ()  # texts that no file may contain
    files: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)

    def add(self, name: str, content: str | Mapping[str, Any] | Sequence[Any]) -> None:
        """Add a file to the bundle, without the secrets of the settings."""
        if not isinstance(content, str):
            content = msgspec.json.format(parts.encoder().encode(content), indent=2).decode()
        self.files[name] = without_secrets(content, self.secrets)

    def lacks(self, part: str, problem: BaseException) -> None:
        """Record that a part is missing because of a problem."""
        problems = single_errors(problem) if isinstance(problem, BaseExceptionGroup) else [problem]
        why = "; ".join(str(each) or type(each).__name__ for each in problems)
        if isinstance(problem, TimeoutError):
            why = "no answer in time"
        self.missing.append(without_secrets(f"{part}: {why}", self.secrets))

    async def part(self, name: str, seconds: float, work: Awaitable[None]) -> None:
        """Run the coroutine that adds a part; if it fails, record the part as missing."""
        try:
            async with asyncio.timeout(seconds):
                await work
        except Exception as problem:
            self.lacks(name, problem)

    def archive(self, folder: str) -> bytes:
        """Return a tar.gz of all files, in a folder of this name."""
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as archive:
            for name, text in sorted(self.files.items()):
                content = text.encode(errors="replace")
                entry = tarfile.TarInfo(f"{folder}/{name}")
                entry.size, entry.mode, entry.mtime = len(content), 0o600, int(Clock().now())
                archive.addfile(entry, io.BytesIO(content))
        return packed.getvalue()


async def collect(
    found: Effective, *, seconds: float, directories: Iterable[Path], management: str = ""
) -> SupportBundle:
    """Return a support bundle. `found`: the settings in force. `seconds`: how long stacks are sampled.
    `directories`: the processes' state directories. `management`: the URL of RabbitMQ's management API.
    """
    settings = found.settings
    secrets = secrets_of(settings)
    bundle = SupportBundle((*secrets, *(json.dumps(secret)[1:-1] for secret in secrets)))
    bundle.add("settings.json", {"settings": found.shown(), "ignored_variables": found.ignored})
    answers: list[ProcessSupport] = []
    paths = [path for directory in directories for path in sockets(directory)]
    parts = {f"process {path.stem}": _process(bundle, path, seconds, answers) for path in paths}
    parts["doctor"] = _doctor(bundle, settings, management)
    for cell in ("", *(cell.name for cell in settings.every_cell if cell.ferry)):
        parts[f"dead letters{cell and f' of cell {cell}'}"] = _letters(bundle, settings, cell)
    for role in composition.stores(settings):
        parts[f"database {composition.store_of(role)}"] = _database(bundle, settings, role)
    await asyncio.gather(*(bundle.part(name, PART_SECONDS + seconds, work) for name, work in parts.items()))
    if not paths:
        bundle.missing.append("processes: none was found in the state directories (--processes adds one)")
    bundle.add("versions.json", _versions(answers))
    bundle.add("slow.json", slowest(answers))
    missing = "".join(f"\n- {why}" for why in bundle.missing) or "none"
    made = {"version": __version__, "machine": platform.node(), "time": time_text(Clock().now())}
    bundle.add("README.txt", _README.format(missing=missing, **made))
    return bundle


async def _process(bundle: SupportBundle, path: Path, seconds: float, answers: list[ProcessSupport]) -> None:
    answer = await ask(path, seconds)
    answers.append(answer)
    folder = f"processes/{re.sub(r'[^A-Za-z0-9_.+-]', '_', answer.name)}.{answer.pid}"
    bundle.add(f"{folder}/state.txt", answer.state)
    bundle.add(f"{folder}/metrics.txt", answer.metrics)
    bundle.add(f"{folder}/warnings.log", "".join(f"{line}\n" for line in answer.warnings))
    if seconds:
        folded = (f"{stack} {count}\n" for stack, count in sorted(answer.stacks.items()))
        bundle.add(f"{folder}/stacks.folded", "".join(folded))


async def _doctor(bundle: SupportBundle, settings: Settings, management: str) -> None:
    seen = await inspect(settings, management=management)
    findings = judged(seen)
    content = {"exit_code": exit_code(findings), "findings": findings, "observed": seen}
    bundle.add("doctor.json", content)


async def _letters(bundle: SupportBundle, settings: Settings, cell: str) -> None:
    async with asyncio.timeout(BROKER_SECONDS), Bus(composition.transport(settings, "debug", cell)) as bus:
        letters = await bus.transport.dead_letters(LETTERS)
    facts = [asdict(letter) | {"body": f"{len(letter.body)} bytes"} for letter in letters]
    bundle.add(f"dead_letters{cell and f'_of_{cell}'}.json", facts)


async def _database(bundle: SupportBundle, settings: Settings, role: Role) -> None:
    if not await composition.ever_made(settings, role):
        raise Unavailable("it was never made")
    database = composition.database_of(settings, role)
    try:
        bundle.add(f"databases/{composition.store_of(role)}.json", await stores.report(database))
    finally:
        await database.close()


def _versions(answers: Iterable[ProcessSupport]) -> dict[str, Any]:
    packages = {each.name: each.version for each in importlib.metadata.distributions()}
    return {
        "berth": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "processes": [
            {"name": answer.name, "pid": answer.pid, "berth": answer.version, "python": answer.python}
            for answer in answers
        ],
        "packages": dict(sorted(packages.items())),
    }


def slowest(answers: Iterable[ProcessSupport]) -> list[dict[str, Any]]:
    """Return the handlers of messages and queries, at most HANDLERS, that took most time in any process, the
    slowest first.
    """
    found: list[dict[str, Any]] = []
    for answer in answers:
        totals: dict[tuple[str, str], dict[str, float]] = {}
        for family in text_string_to_metric_families(answer.metrics):
            for sample in family.samples if family.name == "berth_handling_seconds" else ():
                if not sample.name.endswith("_bucket"):
                    kind = sample.name.rpartition("_")[2]
                    row = totals.setdefault((sample.labels["worker"], sample.labels["topic"]), {})
                    row[kind] = sample.value
        found += [
            {
                "process": answer.name, "pid": answer.pid, "worker": worker, "topic": topic,
                "batches": row["count"], "seconds": row["sum"], "mean_seconds": row["sum"] / row["count"],
            }
            for (worker, topic), row in totals.items()
            if row.get("count")
        ]  # fmt: skip
    return sorted(found, key=lambda row: -row["seconds"])[:HANDLERS]
