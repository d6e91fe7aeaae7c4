"""The parts of a support bundle and of the upgrade check, without services."""

import asyncio
import logging
import os
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from berth import __version__, logs
from berth.configuration import Effective
from berth.doctor.seen import BerthSeen, DatabaseSeen, PackageSeen
from berth.logs import secrets_of
from berth.settings import KINDS, Settings
from berth.support.bundle import SupportBundle, slowest
from berth.support.processes import ProcessSupport, answering, ask, sampled_stacks, sockets
from berth.support.stores import shown
from berth.support.upgrade import Migration, StoreSeen, judged_upgrade, migrations_of

SECRET = "geheim-7"
ADDRESSES = (
    f"u:{SECRET}@h1,h2:5/v",
    f"u:{SECRET}@[::1]/",
    f"h/b?password={SECRET}&x=1",
    f"h?SSLPASSWORD={SECRET}",
)
LEAKS: dict[Any, list[Any]] = {
    str: [f"amqp://{address}" for address in ADDRESSES],
    tuple[str, ...]: [("fence", "--password", SECRET), ("fence", f"--token={SECRET}", "host")],
    dict[str, str]: [{"c1": f"postgresql://{address}"} for address in ADDRESSES] + [{"api_token": SECRET}],
    dict[str, dict[str, Any]]: [{"mine:filter": {"secret": SECRET, "url": f"http://{ADDRESSES[0]}"}}],
}


def test_no_setting_brings_a_secret_into_a_bundle() -> None:
    for setting in [name for name, kind in KINDS.items() if kind in LEAKS]:
        for value in LEAKS[KINDS[setting]]:
            settings = Settings().having(**{setting: value})
            bundle = SupportBundle(secrets_of(settings))
            bundle.add("settings.json", Effective(settings).shown())
            bundle.add("state.txt", f"lost amqp://u:{SECRET}@h/, because the password {SECRET} is wrong")
            bundle.lacks("database", ValueError(f"refused {SECRET}"))
            assert SECRET not in "".join([*bundle.files.values(), *bundle.missing]), value


@pytest.mark.parametrize(
    ("statement", "reply"),
    [
        ("SELECT *\n FROM builds WHERE id = $1", "SELECT * FROM builds WHERE id = $1"),
        ("update t SET a = 'geheim''s' WHERE b = 'x'", "update t SET a = '?' WHERE b = '?'"),
        ("ALTER ROLE c1 PASSWORD 'geheim'", "ALTER ROLE ..."),
        ("<insufficient privilege>", "<insufficient privilege>"),
        (None, ""),
    ],
)
def test_statements_are_shown_without_literals(statement: str | None, reply: str) -> None:
    assert shown(statement) == reply


def test_stacks_of_threads_are_sampled() -> None:
    ended = threading.Event()

    def busy_function() -> None:
        ended.wait()

    thread = threading.Thread(target=busy_function, name="busy-12", daemon=True)
    thread.start()
    stacks = sampled_stacks(0.05, 0.005)
    ended.set()
    thread.join()
    (stack,) = [stack for stack in stacks if stack.startswith("busy;")]
    assert f"{__name__}.test_stacks_of_threads_are_sampled.<locals>.busy_function" in stack.split(";")
    assert stacks[stack] > 1


async def test_a_process_with_a_blocked_event_loop_answers_for_its_state(tmp_path: Path) -> None:
    handler = logs._RecentLines(logging.WARNING)
    handler.setFormatter(logs.TextLines())
    handler.handle(logging.LogRecord("bus.x", logging.WARNING, "", 1, "the broker is away", (), None))
    answers = []

    def ask_from_elsewhere() -> None:
        [path] = sockets(tmp_path)
        answers.append(asyncio.run(ask(path, 0.02)))

    with answering("scheduler", tmp_path, lambda: "the state"):
        assert (tmp_path / "support").stat().st_mode & 0o077 == 0
        assert [path.stat().st_mode & 0o077 for path in sockets(tmp_path)] == [0]
        thread = threading.Thread(target=ask_from_elsewhere)
        thread.start()
        thread.join()  # blocks the event loop
    (answer,) = answers
    assert (answer.name, answer.pid, answer.version, answer.state) == (
        "scheduler", os.getpid(), __version__, "the state",
    )  # fmt: skip
    assert "berth_messages_total" in answer.metrics
    assert answer.warnings[-1].endswith("WARNING bus.x: the broker is away")
    assert answer.stacks
    assert sockets(tmp_path) == []


def test_sockets_of_killed_processes_are_removed_and_those_of_running_ones_stay(tmp_path: Path) -> None:
    (tmp_path / "support").mkdir()
    parent = tmp_path / f"support/{os.getppid()}.sock"  # a process that does not listen yet
    parent.touch()
    with socket.socket(socket.AF_UNIX) as killed, socket.socket(socket.AF_UNIX) as elsewhere:
        killed.bind(str(tmp_path / "support/4194305.sock"))
        elsewhere.bind(str(tmp_path / "support/4194306.sock"))
        elsewhere.listen()
        with answering("scheduler", tmp_path, str):
            names = {path.name for path in sockets(tmp_path)}
    assert names == {"4194306.sock", parent.name, f"{os.getpid()}.sock"}


def test_a_process_without_a_writable_state_directory_runs_nevertheless(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    (tmp_path / "file").touch()
    with answering("scheduler", tmp_path / "file", str):
        assert "`berth system bundle` cannot ask this process" in caplog.text


def test_handlers_are_listed_by_the_time_that_they_took() -> None:
    lines = [
        f'berth_handling_seconds_{kind}{{worker="placement",topic="{topic}"}} {value}'
        for topic, values in {"claim": (10, 2.0), "report": (4, 6.0), "idle": (0, 0.0)}.items()
        for kind, value in zip(("count", "sum"), values, strict=True)
    ]
    metrics = "# TYPE berth_handling_seconds histogram\n" + "\n".join(lines) + "\n"
    answer = ProcessSupport(name="placement", pid=1, version="", metrics=metrics)
    assert [(row["topic"], row["batches"], row["mean_seconds"]) for row in slowest([answer])] == [
        ("report", 4, 1.5), ("claim", 10, 0.2),
    ]  # fmt: skip


MIGRATION = """
revision = "0003_more"
oldest = "0002_some"

def upgrade() -> None:
    op.create_table("fresh", sa.Column("id", sa.Text))
    op.create_index("fresh_id", "fresh", ["id"])
    op.create_index("builds_host", "builds", ["host"], if_not_exists=True)
"""


def test_a_migration_is_read_from_its_file(tmp_path: Path) -> None:
    (tmp_path / "0003_more.py").write_text(MIGRATION)
    (tmp_path / "0001.py").write_text("")
    assert [*migrations_of("x", tmp_path)] == [
        Migration("x", "0001"), Migration("x", "0003_more", "0002_some", {"builds_host": "builds"}),
    ]  # fmt: skip


MIGRATIONS = (
    Migration("x", "0001"), Migration("x", "0002"), Migration("x", "0003", "0002", {"builds_host": "builds"}),
)  # fmt: skip
UPGRADES: list[tuple[str, StoreSeen, tuple[str, str]]] = [
    ("0003", StoreSeen(MIGRATIONS), ("fine", "All migrations are applied")),
    ("0002", StoreSeen(MIGRATIONS, indexes=frozenset({"builds_host"})), ("fine", "will apply 0003 of x")),
    ("0002", StoreSeen(MIGRATIONS), ("warning", "Writers of builds would wait")),
    ("0001", StoreSeen(MIGRATIONS), ("broken", "0003 removes what code before 0002 uses")),
    ("0002", StoreSeen(MIGRATIONS, may_create=False), ("broken", "may not create tables")),
    ("0002", StoreSeen(MIGRATIONS, longest=("process 7, psql", 90.0)), ("warning", "open for 90 s")),
    ("", StoreSeen(MIGRATIONS), ("warning", "It has no tables")),
    ("0009", StoreSeen(MIGRATIONS, oldest={"x": "0003"}), ("warning", "a downgrade, which its data permit")),
    ("0009", StoreSeen(MIGRATIONS, oldest={"x": "0005"}), ("broken", "do not permit a downgrade")),
]  # fmt: skip


@pytest.mark.parametrize(("revision", "store", "expected"), UPGRADES)
def test_an_upgrade_is_judged_by_the_pending_migrations(
    revision: str, store: StoreSeen, expected: tuple[str, str]
) -> None:
    known = tuple(migration.name for migration in MIGRATIONS)
    database = DatabaseSeen("placement", "db", "15.1", packages=(PackageSeen("x", known, revision),))
    found = judged_upgrade(BerthSeen(python=(3, 11), databases=(database,)), {"placement": store}, {}, ())
    level, sentence = expected
    assert [finding.level for finding in found if sentence in finding.says] == [level]


def test_tables_of_a_version_without_migrations_are_named_in_an_upgrade_check() -> None:
    foreign = ("aggregates", "alembic_version", "allocations")
    package = PackageSeen("x", tuple(migration.name for migration in MIGRATIONS))
    database = DatabaseSeen("placement", "db", "15.1", packages=(package,), foreign=foreign)
    found = judged_upgrade(
        BerthSeen(python=(3, 11), databases=(database,)), {"placement": StoreSeen(MIGRATIONS)}, {}, ()
    )
    [finding] = [each for each in found if each.about == "database placement"]
    assert (finding.level, "aggregates, alembic_version" in finding.says) == ("broken", True)
    assert "0.2.0" in finding.says and "new database" in finding.do


@pytest.mark.parametrize(
    ("versions", "ignored", "levels"),
    [
        ({}, (), set()),
        ({"0.0.9": 3}, (), {"fine"}),
        ({"0.0.9": 3, __version__: 1}, (), {"fine"}),
        ({"0.0.9": 3, "0.0.8": 1}, (), {"broken"}),
        ({}, ("BERTH_OLD_NAME",), {"warning"}),
    ],
)
def test_an_upgrade_is_judged_by_versions_and_unknown_settings(
    versions: dict[str, int], ignored: tuple[str, ...], levels: set[str]
) -> None:
    found = judged_upgrade(BerthSeen(python=(3, 11)), {}, versions, ignored)
    assert {finding.level for finding in found if finding.about in ("processes", "settings")} == levels
