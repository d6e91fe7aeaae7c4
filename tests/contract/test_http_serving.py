"""The HTTP API as a process: started by one command, clear errors, orderly stop."""

import asyncio
import json
import signal
from pathlib import Path

import pytest

from bus.http import listen
from tests.support.http_process import (
    SECONDS,
    ApiProcess,
    a_berth_process,
    alone,
    an_api_process,
    answer_from,
    as_http,
    served,
)
from tests.support.ids import uid

pytestmark = pytest.mark.slow


async def refused(directory: Path, *arguments: str) -> tuple[int, str]:
    process = await a_berth_process(directory, *arguments)
    async with asyncio.timeout(SECONDS):
        _, complaint = await process.communicate()
    return process.returncode or 0, complaint.decode().strip()


async def test_one_command_serves_the_api_and_creates_its_tables(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        assert (await api.ask("GET", "/"))[0] == 200
        body = {"name": "n", "uuid": uid(1, "a")}
        assert (await api.ask("POST", "/resource_providers", body))[0] == 200
        api.process.send_signal(signal.SIGTERM)
        _, complaints = await api.process.communicate()
        assert (api.process.returncode, complaints) == (0, b"")
    async with served(tmp_path) as api:  # data of the first process
        assert (await api.ask("GET", f"/resource_providers/{uid(1, 'a')}"))[0] == 200


async def test_berth_up_serves_the_api(tmp_path: Path) -> None:
    up = ("up", "--http", "127.0.0.1:0", "--hosts", "3", "--cells", "c1", "--build-time", "constant:0")
    async with an_api_process(tmp_path, *up) as api:
        assert api.process.stdout is not None
        async with asyncio.timeout(SECONDS):
            assert b"berth is up" in await api.process.stdout.readline()
        status, sent = await api.ask("GET", "/allocation_candidates?resources=VCPU:1")
        assert (status, len(json.loads(sent)["allocation_requests"])) == (200, 3)
        api.process.send_signal(signal.SIGTERM)
        _, complaints = await api.process.communicate()
        assert (api.process.returncode, complaints) == (0, b"")


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
async def test_a_configuration_that_cannot_be_served_is_refused_in_one_line(
    tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    code, complaint = await refused(tmp_path, *arguments)
    assert code in (1, 2)
    assert says in complaint
    assert "Traceback" not in complaint


async def test_tokens_and_a_policy_from_files(tmp_path: Path) -> None:
    (tmp_path / "tokens.toml").write_text(
        '[[tokens]]\ntoken = "admin"\nuser = "u"\nproject = "p"\nroles = ["auditor"]\n'
    )
    (tmp_path / "policy.yaml").write_text('"placement:traits:list": "role:auditor"\n')
    files = ("--auth", "tokens", "--tokens", "tokens.toml", "--policy", "policy.yaml")
    async with served(tmp_path, *files) as api:
        assert (await api.ask("GET", "/traits"))[0] == 200
        assert (await api.ask("GET", "/resource_providers"))[0] == 403


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


async def test_unreadable_requests_are_refused_with_the_usual_error_body(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        for request, status, says in NO_REQUESTS:
            answer = await api.raw(request)
            assert answer.startswith(b"HTTP/1.1 %d " % status)
            assert says in answer
            assert b"x-openstack-request-id: req-" in answer
        assert (await api.ask("GET", "/"))[0] == 200


async def test_idle_connections_do_not_use_up_the_files_of_a_process(tmp_path: Path) -> None:
    async with an_api_process(tmp_path, *alone(tmp_path), files=160) as api:
        idle = [await asyncio.open_connection("127.0.0.1", api.port) for _ in range(400)]
        try:
            assert (await api.ask("GET", "/"))[0] == 200
        finally:
            for _, writer in idle:
                writer.close()
    assert api.process.returncode is not None


@pytest.mark.parametrize("is_kept", [False, True])
async def test_a_connection_is_closed_with_its_response_unless_the_settings_keep_it(
    tmp_path: Path, is_kept: bool
) -> None:
    # Processes that a Nova service forks share the connection of a request before the fork, if it is kept.
    before = ("--set", "placement_keep_alive=60") if is_kept else ()
    async with an_api_process(tmp_path, *before, *alone(tmp_path)) as api:
        reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
        async with asyncio.timeout(SECONDS):
            writer.write(as_http("GET", "/"))
            assert (b"connection: close" in await answer_from(reader)) is not is_kept
            if is_kept:
                writer.write(as_http("GET", "/"))
                assert b"200 OK" in await answer_from(reader)
            else:
                assert await reader.read() == b""
        writer.close()


async def test_a_process_serves_metrics_and_healthz(tmp_path: Path) -> None:
    with listen("127.0.0.1:0") as free:
        port = free.getsockname()[1]
    async with served(tmp_path, "--metrics", f"127.0.0.1:{port}") as api:
        at_metrics = ApiProcess(api.process, port)
        status, sent = await at_metrics.ask("GET", "/metrics")
        assert (status, b"berth_handling_seconds" in sent) == (200, True)
        assert await at_metrics.ask("GET", "/healthz") == (200, b'{"status":"alive"}')
        assert (await at_metrics.ask("GET", "/nowhere"))[0] == 404
        api.process.send_signal(signal.SIGTERM)
        _, complaints = await api.process.communicate()
        assert (api.process.returncode, complaints) == (0, b"")
