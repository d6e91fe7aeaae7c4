"""`berth openstack import placement` between two berths, which speak the same API; and from what is no
Placement.

From an OpenStack Placement: tests/compliance/test_import.py.
"""

import json
import os
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tenacity import wait_none

from berth.kit.placement_client import PlacementClient
from deploy.placement import BerthPlacement
from tests.compliance.api import PlacementApi, empty
from tests.support.berth_processes import run_berth
from tests.support.command_line import CommandLine

pytestmark = pytest.mark.slow

Done = subprocess.CompletedProcess[str]
OWNER = {"project_id": "p", "user_id": "u"}


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    there, here = (tmp_path_factory.mktemp(name) for name in ("there", "here"))
    with (
        BerthPlacement(there, f"sqlite+aiosqlite:///{there}/placement.db") as source,
        BerthPlacement(here, f"sqlite+aiosqlite:///{here}/placement.db") as target,
    ):
        yield source.base_url, target.base_url


@pytest.fixture
def there(urls: tuple[str, str]) -> Iterator[PlacementApi]:
    api = PlacementApi(urls[0])
    empty(api)
    yield api
    api.close()


@pytest.fixture
def here(urls: tuple[str, str]) -> Iterator[PlacementApi]:
    api = PlacementApi(urls[1])
    empty(api)
    yield api
    api.close()


def import_placement(*arguments: str, **variables: str) -> Done:
    around = {key: value for key, value in os.environ.items() if not key.startswith(("BERTH_", "OS_"))}
    return run_berth(
        ("openstack", "import", "placement", *arguments), Path.cwd(), {**around, "NO_COLOR": "1", **variables}
    )


def load(api: PlacementApi, *providers: tuple[str, dict[str, int]]) -> list[str]:
    ids = [str(uuid.uuid4()) for _ in providers]
    for id_, (name, has) in zip(ids, providers, strict=True):
        api.do("POST", "/resource_providers", {"name": name, "uuid": id_})
        inventories = {class_: {"total": total} for class_, total in has.items()}
        body = {"resource_provider_generation": 0, "inventories": inventories}
        api.do("PUT", f"/resource_providers/{id_}/inventories", body)
    return ids


def hold(api: PlacementApi, provider: str, resource_class: str, amount: int, consumer: str = "") -> str:
    id_ = consumer or str(uuid.uuid4())
    body = {
        "allocations": {provider: {"resources": {resource_class: amount}}},
        "consumer_generation": api.get(f"/allocations/{id_}").get("consumer_generation"),
        **OWNER,
    }
    api.do("PUT", f"/allocations/{id_}", body, version="1.37")
    return id_


def test_the_target_comes_from_the_settings_and_tokens_from_files(
    here: PlacementApi, there: PlacementApi, tmp_path: Path
) -> None:
    load(there, ("a", {"VCPU": 4}), ("b", {"VCPU": 4}))
    token = tmp_path / "token"
    token.write_text("admin\n")
    address = here.wire.base_url.removeprefix("http://")
    done = import_placement("--url", there.wire.base_url, "--token-file", str(token), "--verify",
                 BERTH_PLACEMENT_HTTP=address, OS_TOKEN="nobody")  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "2 providers made" in done.stdout and "both sides hold the same" in done.stdout
    names = {provider["name"] for provider in here.get("/resource_providers")["resource_providers"]}
    assert names == {"a", "b"}


def both(there: PlacementApi, here: PlacementApi, *flags: str) -> Done:
    return import_placement("--url", there.wire.base_url, "--to", here.wire.base_url, "--verify", *flags)


def test_allocations_passed_between_consumers_are_imported(here: PlacementApi, there: PlacementApi) -> None:
    a, b = load(there, ("a", {"VCPU": 4, "VGPU": 1}), ("b", {"VCPU": 4}))
    consumers = [hold(there, a, "VCPU", 4), hold(there, b, "VCPU", 4)]
    third = hold(there, a, "VGPU", 1)
    assert both(there, here).returncode == 0
    there.do("DELETE", f"/allocations/{consumers[0]}")
    hold(there, a, "VCPU", 4, consumers[1])  # each now where the other was
    hold(there, b, "VCPU", 4, consumers[0])
    there.do("DELETE", f"/allocations/{third}")
    there.do("DELETE", f"/resource_providers/{a}/inventories/VGPU")  # in use here until it is released
    done = both(there, here, "--prune")
    assert (done.returncode, "both sides hold the same" in done.stdout) == (0, True), done.stdout


@contextmanager
def always_answering(answer: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[str]:
    """A server that gives this answer to whatever is asked with GET."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def reply(handler: BaseHTTPRequestHandler, status: int, body: bytes) -> None:
    handler.send_response(status)
    handler.send_header("content-length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


def _root(newest: str) -> bytes:
    return json.dumps({"versions": [{"id": "v1.0", "min_version": "1.0", "max_version": newest}]}).encode()


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (200, b"<html>welcome</html>", "does not answer as a Placement"),
        (200, _root("1.13"), "knows versions up to 1.13; at least 1.14 is needed"),
        (401, b"who are you?", "does not accept the token"),
    ],
)
def test_a_server_that_is_not_placement_is_reported_in_one_sentence(
    here: PlacementApi, status: int, body: bytes, says: str
) -> None:
    with always_answering(lambda handler: reply(handler, status, body)) as url:
        done = import_placement("--url", url, "--to", here.wire.base_url)
    assert done.returncode == 1 and done.stdout == ""
    assert says in done.stderr and len(done.stderr.splitlines()) == 1


def test_providers_deleted_during_an_import_are_left_out(here: PlacementApi) -> None:
    entry = {"uuid": str(uuid.uuid4()), "name": "a", "parent_provider_uuid": None}

    def answer(handler: BaseHTTPRequestHandler) -> None:
        bodies = {
            "/": _root("1.39"),
            "/resource_classes": b'{"resource_classes": []}',
            "/traits?name=startswith:CUSTOM_": b'{"traits": []}',
            "/resource_providers": json.dumps({"resource_providers": [entry]}).encode(),
        }
        body = bodies.get(handler.path, b"")
        reply(handler, 200 if body else 404, body)

    with always_answering(answer) as url:
        done = import_placement("--url", url, "--to", here.wire.base_url)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "nothing had to be changed"


def test_a_briefly_unreachable_source_is_queried_again(here: PlacementApi) -> None:
    answers: list[int] = []

    def answer(handler: BaseHTTPRequestHandler) -> None:
        answers.append(503 if len(answers) < 2 else 200)
        bodies = {
            "/": _root("1.39"),
            "/resource_providers": b'{"resource_providers": []}',
            "/resource_classes": b'{"resource_classes": []}',
        }
        reply(handler, answers[-1], bodies.get(handler.path, b'{"traits": []}'))

    with always_answering(answer) as url:
        done = import_placement("--url", url, "--to", here.wire.base_url)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "nothing had to be changed")
    assert answers[:3] == [503, 503, 200]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--url", "u:geheim@x", "--to", "http://x"), "not 'u:****@x'"),
        (
            ("--url", "https://x", "--to", "http://x", "--cacert", "pyproject.toml"),
            "there is no certificate in it",
        ),
    ],
)
def test_invalid_flags_are_refused(flags: tuple[str, ...], says: str) -> None:
    done = import_placement(*flags)
    assert done.returncode in (1, 2) and says in done.stderr
    assert "geheim" not in done.stderr
    assert len(done.stderr.splitlines()) == 1


async def test_an_unreachable_server_is_named_without_its_password(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(PlacementClient._send.retry, "wait", wait_none())
    line = CommandLine("openstack import", monkeypatch, capsys)
    done = await line.done("placement", "--url", "http://u:geheim@127.0.0.1:1", "--to", "http://127.0.0.1:1")
    assert (done.code, done.stdout) == (1, "")
    [sentence] = done.stderr.splitlines()
    assert sentence.startswith("http://u:****@127.0.0.1:1 cannot be reached")
