"""RabbitMQ's users by its management API or by rabbitmqctl: what is asked, and what their refusals mean."""

import asyncio
import json
import os
import shutil
import sqlite3
import ssl
import stat
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest
from sqlalchemy import exc
from sqlalchemy.engine import make_url

from berth.broker_users import Management, Rabbitmqctl, broker_users
from berth.cell_file import CellFile, read_cell_file, write_cell_file
from berth.configuration import read
from berth.kit.broker_permissions import hashed
from berth.settings import BadSetting, Settings
from bus.errors import BrokerRefused, Unavailable
from bus.masking import distrusted
from bus.sql.failures import Conflict, Meaning, explained, meaning
from bus.sql.postgres import secured

AMQP = "amqp://admin:p%40ss@mq.example:5672/v%2Fh"
REAL_CLIENT = httpx.AsyncClient


class FakeManagement:
    """Answers by path; what is not there is 404."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[str, str, Any]] = []
        self.answers: dict[str, tuple[int, Any]] = {}
        self.away = False
        self.only = ""  # the host that answers, if not all do
        patch.setattr(httpx, "AsyncClient", partial(REAL_CLIENT, transport=httpx.MockTransport(self.answer)))

    def answer(self, request: httpx.Request) -> httpx.Response:
        if self.away or self.only not in ("", request.url.host):
            raise httpx.ConnectError("connection refused")
        path = request.url.raw_path.decode()
        body = json.loads(request.content) if request.content else request.headers["authorization"]
        self.asked.append((request.method, path, body))
        status, sent = self.answers.get(path, (404, {}))
        return httpx.Response(status, json=sent)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeManagement:
    return FakeManagement(monkeypatch)


async def test_the_management_api_is_called_with_the_broker_credentials(fake: FakeManagement) -> None:
    api = Management("http://mq.example:15672/", AMQP)
    fake.answers = {
        "/api/users": (200, [{"name": "guest"}, {"name": "berth-c9"}]),
        "/api/queues/v%2Fh?columns=name": (200, [{"name": "q"}]),
        "/api/definitions": (201, None),
    }
    assert await api.users() == {"guest", "berth-c9"} and await api.queues() == ["q"]
    await api.take({"users": []})
    await api.drop("berth-c9", "berth flood c9")
    basic = "Basic YWRtaW46cEBzcw=="
    assert fake.asked == [
        ("GET", "/api/users", basic),
        ("GET", "/api/queues/v%2Fh?columns=name", basic),
        ("POST", "/api/definitions", {"users": []}),
        ("DELETE", "/api/users/berth-c9", basic),
        ("DELETE", "/api/policies/v%2Fh/berth%20flood%20c9", basic),
    ]


@pytest.mark.parametrize(
    ("status", "kind", "says"),
    [
        (401, BrokerRefused, "does not let admin do this: it takes a user with the tag administrator"),
        (403, BrokerRefused, "tag administrator"),
        (400, BrokerRefused, "bad_request"),
        (404, BrokerRefused, "GET users: 404"),
        (0, Unavailable, "connection refused"),
    ],
)
async def test_errors_of_the_management_api_contain_no_passwords(
    fake: FakeManagement, status: int, kind: type[Exception], says: str
) -> None:
    fake.away = not status
    fake.answers = {"/api/users": (status, {"error": "bad_request"})}
    with pytest.raises(kind, match=says) as refused:
        await Management("http://admin:secret@mq.example:15672", AMQP).users()
    assert "secret" not in str(refused.value) and "p@ss" not in str(refused.value)


async def test_the_management_api_is_found_at_its_usual_address(
    fake: FakeManagement, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    command = a_rabbitmqctl(tmp_path)
    monkeypatch.setattr(shutil, "which", lambda name: str(command))
    fake.answers = {"/api/whoami": (200, {})}
    assert (await broker_users(AMQP, "", "")).by == "the management API at http://mq.example:15672"
    assert (await broker_users(AMQP.replace("amqp:", "amqps:"), "", "")).by.endswith(
        "https://mq.example:15671"
    )
    several = "amqp://admin:p@127.0.0.9:1,mq.example/v"
    fake.only = "mq.example"
    assert (await broker_users(several, "", "")).by == "the management API at http://mq.example:15672"
    fake.away = True
    assert (await broker_users("amqp://mq.example,127.0.0.1/", "", "")).by == str(command)
    assert (await broker_users("amqp://127.0.0.1/", "", "")).by == str(command)
    with pytest.raises(
        Unavailable, match="no rabbitmqctl is here for it"
    ):  # that of another machine's broker
        await broker_users(AMQP, "", "")
    assert (await broker_users(AMQP, "", "/opt/ctl")).by == "/opt/ctl"
    with pytest.raises(BadSetting, match="--management ftp://x: must look like http"):
        await broker_users(AMQP, "ftp://x", "")


@pytest.mark.parametrize("tool", ["management", "rabbitmqctl"])
async def test_users_are_not_made_on_another_broker_of_this_machine(
    fake: FakeManagement, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tool: str
) -> None:
    command = a_rabbitmqctl(tmp_path) if tool == "rabbitmqctl" else None
    monkeypatch.setattr(shutil, "which", lambda name: command and str(command))
    listeners = [{"port": 5672, "protocol": "amqp"}]
    fake.answers = {"/api/whoami": (200, {}), "/api/overview": (200, {"listeners": listeners})}
    fake.away = tool != "management"
    assert tool in (await broker_users("amqp://127.0.0.1/", "", "")).by
    with pytest.raises(Unavailable, match="does not answer for this broker, and no rabbitmqctl is here for"):
        await broker_users("amqp://127.0.0.1:5673/", "", "")


def a_rabbitmqctl(directory: Path) -> Path:
    command = directory / "rabbitmqctl"
    command.write_text(CONTROL.format(log=directory / "log"))
    command.chmod(0o700)
    return command


CONTROL = """#!/bin/sh
echo "$@" >> {log}
case "$*" in
  *status*) echo '{{"listeners":[{{"port":5672}}]}}' ;;
  eval) cat > {log}.input ;;
  *list_users*) echo '[{{"user":"guest","tags":[]}}]' ;;
  *delete_user*) echo 'Error:' >&2; echo 'User "berth-c9" does not exist' >&2; exit 67 ;;
  *clear_policy*) echo 'Error: no rights' >&2; exit 1 ;;
esac
"""


async def test_rabbitmqctl_gets_definitions_on_standard_input(tmp_path: Path) -> None:
    log, control = tmp_path / "log", Rabbitmqctl(str(a_rabbitmqctl(tmp_path)), AMQP)
    assert await control.users() == {"guest"}
    await control.take({"users": [{"name": 'a"b\\c'}]})
    with pytest.raises(BrokerRefused, match="clear_policy: Error: no rights"):
        await control.drop("berth-c9", "berth flood c9")
    first, second, *ends = log.read_text().splitlines()
    assert (first, second) == ("--quiet list_users --formatter json", "eval")
    assert sorted(ends) == [
        "--quiet clear_policy -p v/h berth flood c9", "--quiet delete_user berth-c9",
    ]  # fmt: skip
    erlang = r"""ok = rabbit_definitions:import_raw(<<"{\"users\": [{\"name\": \"a\\\"b\\\\c\"}]}">>)."""
    assert Path(f"{log}.input").read_text() == erlang
    with pytest.raises(Unavailable, match="No such file"):
        await Rabbitmqctl(str(tmp_path / "none"), AMQP).users()


async def test_a_rabbitmqctl_that_does_not_end_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("berth.broker_users._COMMAND_SECONDS", 0.1)
    command = tmp_path / "ctl"
    command.write_text("#!/bin/sh\nexec sleep 600\n")
    command.chmod(0o700)
    with pytest.raises(Unavailable, match=r"ctl eval: it did not end within 0\.1 s"):
        await Rabbitmqctl(str(command), AMQP).take({})


@pytest.mark.parametrize("refused", ["delete_user", "clear_policy"])
async def test_a_failed_rabbitmqctl_command_leaves_no_process(tmp_path: Path, refused: str) -> None:
    command, done = tmp_path / "ctl", tmp_path / "done"
    command.write_text(f"""#!/bin/sh
if [ "$2" = {refused} ]; then echo no >&2; exit 1; fi
sleep 0.3
echo "$2" > {done}
""")
    command.chmod(0o700)
    with pytest.raises(BrokerRefused, match=refused):
        await Rabbitmqctl(str(command), AMQP).drop("berth-c9", "berth flood c9")
    assert done.read_text().strip() in {"delete_user", "clear_policy"} - {refused}


async def test_a_cancelled_rabbitmqctl_is_terminated(tmp_path: Path) -> None:
    command, pid = tmp_path / "ctl", tmp_path / "pid"
    os.mkfifo(pid)
    command.write_text(f"#!/bin/sh\necho $$ > {pid}\nexec sleep 600\n")
    command.chmod(0o700)
    asking = asyncio.create_task(Rabbitmqctl(str(command), AMQP).users())
    process = int(await asyncio.to_thread(pid.read_text))  # it runs
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_passwords_are_hashed_as_rabbitmq_has_them() -> None:
    """The example of its documentation."""
    assert hashed("test12", bytes.fromhex("908dc60a")) == "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR"


PLAIN = "postgresql+asyncpg://u@h/b"


@pytest.mark.parametrize(
    ("query", "sent"),
    [
        ("", {}),
        ("?sslmode=verify-full", {"ssl": "verify-full"}),
        ("?ssl=require", {"ssl": "require"}),
        ("?sslmode=disable", {"ssl": "disable"}),
    ],
)
def test_an_ssl_mode_without_files_is_passed_to_the_driver(query: str, sent: dict[str, object]) -> None:
    address, security = secured(make_url(PLAIN + query))
    assert (str(address), security) == (PLAIN, sent)


@pytest.mark.parametrize(
    ("mode", "verifies", "name"),
    [
        ("verify-full", ssl.CERT_REQUIRED, True),
        ("verify-ca", ssl.CERT_REQUIRED, False),
        ("require", ssl.CERT_REQUIRED, False),  # as libpq does where there is an authority
    ],
)
def test_a_certificate_authority_is_passed_to_the_driver(
    mode: str, verifies: ssl.VerifyMode, name: bool
) -> None:
    address, security = secured(make_url(f"{PLAIN}?sslmode={mode}&sslrootcert={an_authority()}&host=x"))
    context = security["ssl"]
    assert str(address) == f"{PLAIN}?host=x"
    assert (context.verify_mode, context.check_hostname) == (verifies, name)


def an_authority() -> Path:
    found = ssl.get_default_verify_paths().cafile
    if found is None:
        pytest.skip("this machine trusts no authority in one file")
    return Path(found)


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("sslmode=verify_full", "sslmode=verify_full: there are disable, allow,"),
        ("sslmode=prefer&sslrootcert=/x", "sslmode=prefer needs no certificates: use require,"),
        ("sslrootcert=/x", "sslmode=: there are"),
    ],
)
def test_invalid_parameters_are_refused(query: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        secured(make_url(f"{PLAIN}?{query}"))


def not_believed() -> ssl.SSLCertVerificationError:
    problem = ssl.SSLCertVerificationError(1, "certificate verify failed")
    problem.verify_message = "certificate has expired."
    return problem


def caused_by(cause: BaseException) -> ConnectionError:
    problem = ConnectionError("reset")
    problem.__cause__ = cause
    return problem


def each_others() -> ConnectionError:
    first, second = ConnectionError("reset"), ConnectionError("cannot be made")
    first.__cause__, second.__context__ = second, first
    return first


@pytest.mark.parametrize(
    ("problem", "says"),
    [
        (ConnectionError("reset"), ""),
        (not_believed(), "its certificate is not believed: certificate has expired"),
        (caused_by(not_believed()), "its certificate is not believed: certificate has expired"),
        (caused_by(each_others()), ""),
        (each_others(), ""),
    ],
    ids=["another", "itself", "its cause", "a circle behind it", "a circle"],
)
def test_the_certificate_error_is_found_in_a_chain_of_causes(problem: BaseException, says: str) -> None:
    assert distrusted(problem) == says


OURS = Settings().having(
    amqp_url="amqp://admin:all@mq/v", exchange="e2", database_url="postgresql://o:o@db/b"
)
HAS = CellFile("amqp://e2-c9:one@mq/v", "postgresql://b_c9:two@db/b_c9")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_cell_file_has_only_the_secrets_of_its_cell(tmp_path: Path) -> None:
    path = tmp_path / "c9.toml"
    assert read_cell_file(path, "c9") is None
    assert write_cell_file(path, "c9", OURS, HAS)
    assert mode(path) == 0o600 and [path.name for path in tmp_path.iterdir()] == ["c9.toml"]
    text = path.read_text()
    assert "all@" not in text and "o:o@" not in text
    settings = read(file=path, environment={}).settings
    assert (settings.cell_names, settings.bus.exchange) == (("c9",), "e2")
    assert settings.cell("c9").broker == HAS.broker and settings.cell("c9").database == HAS.database
    assert read_cell_file(path, "c9") == HAS


def test_rewriting_a_cell_file_changes_only_different_values(tmp_path: Path) -> None:
    path = tmp_path / "c9.toml"
    write_cell_file(path, "c9", OURS, HAS)
    path.write_text("hosts = 7\n" + path.read_text() + "[scheduler_weighers]\ncpu = 2.0\n")
    path.chmod(0o644)
    assert not write_cell_file(path, "c9", OURS, HAS)
    assert mode(path) == 0o600
    other = CellFile("amqp://e2-c9:\\1new@mq/v", HAS.database)  # nothing in it means anything to a pattern
    assert write_cell_file(path, "c9", OURS, other)
    sent = tomllib.loads(path.read_text())
    assert (sent["hosts"], sent["amqp_url"], sent["scheduler_weighers"]) == (7, other.broker, {"cpu": 2.0})
    path.write_text('cells = ["c9"]\n[cells_of_others]\n')
    write_cell_file(path, "c9", OURS, HAS)
    assert tomllib.loads(path.read_text())["database_url"] == HAS.database


@pytest.mark.parametrize(
    "text", ['cells = ["c1"]', 'cells = ["c9", "c1"]', "amqp_url = 'amqp://x/'", "cells = ["]
)
def test_a_foreign_file_is_not_overwritten(tmp_path: Path, text: str) -> None:
    path = tmp_path / "c9.toml"
    path.write_text(text)
    with pytest.raises(BadSetting, match=r"c9.toml"):
        read_cell_file(path, "c9")


def a_postgres_error(state: str) -> asyncpg.PostgresError:
    error = asyncpg.PostgresError("the server's words")
    error.sqlstate = state
    return error


def a_sqlite_error(code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("the server's words")
    error.sqlite_errorcode = code
    return error


def test_a_statement_prepared_before_a_table_was_altered_is_prepared_again() -> None:
    error = asyncpg.exceptions.InvalidCachedStatementError("cached statement plan is invalid")
    assert meaning(error) is Meaning.RACE


# A defect's error stays what it is.
BY_SQLSTATE: dict[str, type[Exception]] = {
    "40001 40P01 55P03 72000": Conflict,
    "08006 25006 26000 3D000 40003 42501 53100 57P01 57P03 58030 F0000 XX001": Unavailable,
    "23505 23514 40002": exc.IntegrityError,
    "42703 0A000 22P02 P0001": asyncpg.PostgresError,
}
BY_RESULT_CODE: dict[str, type[Exception]] = {
    "SCHEMA": Conflict,
    "BUSY LOCKED READONLY IOERR_WRITE CORRUPT FULL CANTOPEN BUSY_SNAPSHOT": Unavailable,
    "CONSTRAINT_UNIQUE": exc.IntegrityError,
    "ERROR MISUSE TOOBIG": sqlite3.OperationalError,
}
CODED: list[tuple[Exception, type[Exception]]] = [
    (a_postgres_error(state), kind) for states, kind in BY_SQLSTATE.items() for state in states.split()
]
CODED += [
    (a_sqlite_error(getattr(sqlite3, f"SQLITE_{code}")), kind)
    for codes, kind in BY_RESULT_CODE.items()
    for code in codes.split()
]


def test_each_code_of_a_database_has_its_meaning() -> None:
    for error, kind in CODED:
        assert type(explained(error, "db")) is kind
        wrapped = exc.DBAPIError("SELECT", None, error)  # as SQLAlchemy hands it on
        assert meaning(wrapped) is meaning(error)


SAID: list[tuple[Exception, type[Exception], str]] = [
    (a_postgres_error("40001"), Conflict, "db: the server's words"),
    (a_postgres_error("23505"), exc.IntegrityError, "the server's words"),
    (ConnectionRefusedError(111, "x"), Unavailable, "db: no connection: connection refused"),
    (TimeoutError(), Unavailable, "db: no answer in time"),
    (exc.TimeoutError("pool"), Unavailable, "db: all connections remained busy for too long"),
    (KeyError("mine"), KeyError, "'mine'"),
]


@pytest.mark.parametrize(("error", "kind", "words"), SAID, ids=[type(one[0]).__name__ for one in SAID])
def test_driver_errors_are_translated(error: Exception, kind: type[Exception], words: str) -> None:
    found: Any = explained(error, "db")
    assert type(found) is kind
    assert words in str(found)
