"""The HTTP API as a process: started by one command, clear errors, orderly stop."""

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest

from bus.http import listen
from tests.support.berth_processes import run_berth
from tests.support.http_process import SECONDS, ApiProcess, alone, an_api_process, answer_from, as_http
from tests.support.ids import uid
from tests.support.waiting import patience

pytestmark = pytest.mark.slow

# The sent bytes, and a text that the answer must contain.
NO_REQUESTS = (
    (b"GET / HTTP/1.1\r\nhost: x\r\ncontent-length: hi mom\r\n\r\n", 400, b"must be an integer"),
    (
        b"POST /resource_providers HTTP/1.1\r\nhost: x\r\nx-auth-token: admin\r\n"
        b"content-type: application/json\r\ncontent-length: 99999999\r\n\r\n",
        413,
        b"1048576 bytes",
    ),
)
TOKENS = '[[tokens]]\ntoken = "admin"\nuser = "u"\nproject = "p"\nroles = ["admin", "auditor"]\n'
POLICY = '"placement:traits:list": "role:auditor"\n"placement:resource_classes:list": "role:nobody"\n'


async def test_one_command_serves_the_api_with_metrics_and_creates_its_tables(tmp_path: Path) -> None:
    with listen("127.0.0.1:0") as free:
        port = free.getsockname()[1]
    body = {"name": "n", "uuid": uid(1, "a")}
    metrics = ("--metrics", f"127.0.0.1:{port}")
    async with an_api_process(tmp_path, *alone(tmp_path, *metrics), files=160) as api:
        assert (await api.ask("POST", "/resource_providers", body))[0] == 200
        assert not await keeps_connections(api)
        await idle_connections_do_not_use_up_its_files(api, 400)

        at_metrics = ApiProcess(api.process, port)
        status, sent = await at_metrics.ask("GET", "/metrics")
        assert (status, b"berth_handling_seconds" in sent) == (200, True)
        assert await at_metrics.ask("GET", "/healthz") == (200, b'{"status":"alive"}')
        assert (await at_metrics.ask("GET", "/nowhere"))[0] == 404
        await ends_without_complaints(api)

    (tmp_path / "tokens.toml").write_text(TOKENS)
    (tmp_path / "policy.yaml").write_text(POLICY)
    files = ("--auth", "tokens", "--tokens", "tokens.toml", "--policy", "policy.yaml")
    kept = ("--set", "placement_keep_alive=60")
    async with an_api_process(tmp_path, *kept, *alone(tmp_path, *files)) as api:
        # data of the first process
        assert (await api.ask("GET", f"/resource_providers/{uid(1, 'a')}"))[0] == 200
        assert (await api.ask("GET", "/traits"))[0] == 200
        assert (await api.ask("GET", "/resource_classes"))[0] == 403
        assert await keeps_connections(api)
        await unreadable_requests_are_refused_with_the_usual_error_body(api)


async def unreadable_requests_are_refused_with_the_usual_error_body(api: ApiProcess) -> None:
    for request, status, says in NO_REQUESTS:
        answer = await api.raw(request)
        assert answer.startswith(b"HTTP/1.1 %d " % status)
        assert says in answer
        assert b"x-openstack-request-id: req-" in answer
    assert (await api.ask("GET", "/"))[0] == 200


async def idle_connections_do_not_use_up_its_files(api: ApiProcess, count: int) -> None:
    idle = [await asyncio.open_connection("127.0.0.1", api.port) for _ in range(count)]
    try:
        assert (await api.ask("GET", "/"))[0] == 200
    finally:
        for _, writer in idle:
            writer.close()


async def keeps_connections(api: ApiProcess) -> bool:
    """Return whether a connection stays open after its response, as the response says.

    Processes that a Nova service forks share the connection of a request before the fork, if it is kept.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
    async with patience(SECONDS):
        writer.write(as_http("GET", "/"))
        is_kept = b"connection: close" not in await answer_from(reader)
        if is_kept:
            writer.write(as_http("GET", "/"))
            assert b"200 OK" in await answer_from(reader)
        else:
            assert await reader.read() == b""
    writer.close()
    return is_kept


async def ends_without_complaints(api: ApiProcess) -> None:
    api.process.send_signal(signal.SIGTERM)
    _, complaints = await api.process.communicate()
    assert (api.process.returncode, complaints) == (0, b"")


async def test_berth_up_serves_the_api(tmp_path: Path) -> None:
    up = ("up", "--http", "127.0.0.1:0", "--hosts", "3", "--cells", "c1", "--build-time", "constant:0")
    async with an_api_process(tmp_path, *up) as api:
        assert api.process.stdout is not None
        async with patience(SECONDS):
            assert b"berth is up" in await api.process.stdout.readline()
        status, sent = await api.ask("GET", "/allocation_candidates?resources=VCPU:1")
        assert (status, len(json.loads(sent)["allocation_requests"])) == (200, 3)
        await ends_without_complaints(api)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("run", "placement", "--bus", "local"), "only placement is useful, and only with --http"),
        (
            ("run", "placement", "--http", "127.0.0.1:0", "--bus", "local", "--policy", "nowhere"),
            "nowhere: cannot be read: No such file or directory",
        ),
        (
            ("--set", "database_url=sqlite+aiosqlite:////tmp/x.db", "up", "--http", "127.0.0.1:0"),
            "name a directory, with a / at the end",
        ),
    ],
)
def test_a_configuration_that_cannot_be_served_is_refused_in_one_line(
    tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    around = {key: value for key, value in os.environ.items() if not key.startswith("BERTH_")}
    done = run_berth(arguments, tmp_path, around)
    assert done.returncode in (1, 2)
    assert says in done.stderr
    assert "Traceback" not in done.stderr
