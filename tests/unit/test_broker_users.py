"""RabbitMQ's users by its management API or by rabbitmqctl: what is asked, and what their refusals mean."""

import asyncio
import json
import os
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from berth.broker_users import Management, Rabbitmqctl, broker_users
from berth.settings import BadSetting
from bus.errors import BrokerRefused, Unavailable
from bus.rabbit.permissions import hashed

AMQP = "amqp://admin:p%40ss@mq.example:5672/v%2Fh"
REAL_CLIENT = httpx.AsyncClient


class FakeManagement:
    """Answers by path; what is not there is 404."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[str, str, Any]] = []
        self.answers: dict[str, tuple[int, Any]] = {}
        self.away = False
        patch.setattr(httpx, "AsyncClient", partial(REAL_CLIENT, transport=httpx.MockTransport(self.answer)))

    def answer(self, request: httpx.Request) -> httpx.Response:
        if self.away:
            raise httpx.ConnectError("connection refused")
        path = request.url.raw_path.decode()
        body = json.loads(request.content) if request.content else request.headers["authorization"]
        self.asked.append((request.method, path, body))
        status, told = self.answers.get(path, (404, {}))
        return httpx.Response(status, json=told)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeManagement:
    return FakeManagement(monkeypatch)


async def test_the_management_api_is_asked_as_whom_the_broker_knows_us(fake: FakeManagement) -> None:
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
    fake: FakeManagement, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/sbin/{name}")
    fake.answers = {"/api/whoami": (200, {})}
    assert (await broker_users(AMQP, "", "")).by == "the management API at http://mq.example:15672"
    assert (await broker_users(AMQP.replace("amqp:", "amqps:"), "", "")).by.endswith(
        "https://mq.example:15671"
    )
    fake.away = True
    assert (await broker_users("amqp://127.0.0.1/", "", "")).by == "/usr/sbin/rabbitmqctl"
    with pytest.raises(
        Unavailable, match="no rabbitmqctl is here for it"
    ):  # that of another machine's broker
        await broker_users(AMQP, "", "")
    assert (await broker_users(AMQP, "", "/opt/ctl")).by == "/opt/ctl"
    with pytest.raises(BadSetting, match="--management ftp://x: looks like http"):
        await broker_users(AMQP, "ftp://x", "")


CONTROL = """#!/bin/sh
echo "$@" >> {said}
case "$2" in
  list_users) echo '[{{"user":"guest","tags":[]}}]' ;;
  import_definitions) cat >> {said} ;;
  delete_user) echo 'Error:' >&2; echo 'User "berth-c9" does not exist' >&2; exit 67 ;;
  clear_policy) echo 'Error: no rights' >&2; exit 1 ;;
esac
"""


async def test_rabbitmqctl_is_given_definitions_by_way_of_no_file(tmp_path: Path) -> None:
    said, command = tmp_path / "said", tmp_path / "ctl"
    command.write_text(CONTROL.format(said=said))
    command.chmod(0o700)
    control = Rabbitmqctl(str(command), AMQP)
    assert await control.users() == {"guest"}
    await control.take({"users": ["x"]})
    with pytest.raises(BrokerRefused, match="clear_policy: Error: no rights"):
        await control.drop("berth-c9", "berth flood c9")
    first, second, *ends = said.read_text().splitlines()
    assert (first, second) == ("--quiet list_users --formatter json", "--quiet import_definitions")
    assert sorted("".join(ends).replace('{"users":["x"]}', "").split("--quiet ")) == [
        "", "clear_policy -p v/h berth flood c9", "delete_user berth-c9",
    ]  # fmt: skip
    with pytest.raises(Unavailable, match="No such file"):
        await Rabbitmqctl(str(tmp_path / "none"), AMQP).users()


@pytest.mark.parametrize("refused", ["delete_user", "clear_policy"])
async def test_nothing_of_rabbitmqctl_is_left_running_where_one_of_its_commands_fails(
    tmp_path: Path, refused: str
) -> None:
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


async def test_a_rabbitmqctl_nobody_waits_for_any_longer_is_ended(tmp_path: Path) -> None:
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
