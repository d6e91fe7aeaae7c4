"""The list of problems of a whole berth: `berth problems`, `berth doctor`, the first page and the REST API
list the same troubles with the same sentences, and a sound berth has none.
"""

import asyncio
import html
import json
import os
import re
import secrets
import signal
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from msgspec import structs

from berth import composition
from berth.kit import boot_request, options_named, parts_given
from berth.problems.kinds import AGENT_LATE, DEAD_LETTERS, HOST_FORCED_DOWN, PROCESS_RESTARTED
from berth.settings import Settings
from bus.delivery.runner import Bus
from bus.parts import RequestParts
from deploy.servers import Postgres, RabbitMQ, free_port
from features.headroom.problems import HEADROOM_LOST
from features.waiting.problems import REQUEST_STARVES
from tests.support.berth_processes import Up
from tests.support.envelopes import a_letter
from tests.support.servers import a_module_database, url_of

pytestmark = pytest.mark.services

LETTERS = 15
PROBLEMS = sorted(
    kind.name
    for kind in (
        AGENT_LATE, DEAD_LETTERS, HEADROOM_LOST, HOST_FORCED_DOWN, PROCESS_RESTARTED, REQUEST_STARVES,
    )
)  # fmt: skip


@pytest.fixture(scope="module")
def up(rabbitmq: RabbitMQ, postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A berth of two cells. Its commands have the default settings, which name further cells."""
    with a_module_database(postgres) as database:
        environment = {
            "BERTH_AMQP_URL": url_of(rabbitmq),
            "BERTH_DATABASE_URL": database,
            "BERTH_EXCHANGE": f"t{secrets.token_hex(4)}",
            "BERTH_HEARTBEAT": "1",
            "BERTH_WAITING_STARVING": "0.5",
            "BERTH_REST_HTTP": f"127.0.0.1:{free_port()}",
        }
        flags = ("--hosts", "6", "--cells", "2", "--build-time", "constant:0.01")
        with Up(tmp_path_factory.mktemp("problems"), environment, *flags) as berth:
            yield berth


def problems(up: Up) -> list[dict[str, Any]]:
    shown = up.berth("problems", "--json")
    found = [json.loads(line) for line in shown.stdout.splitlines()]
    assert shown.returncode == (1 if found else 0), shown.stdout + shown.stderr
    return found


def first_page(up: Up) -> str:
    [url] = re.findall(r"the control room is at (\S+)", up.log)
    return html.unescape(httpx.get(url, params={"wait": "1"}, follow_redirects=True, timeout=60.0).text)


def over_rest(up: Up) -> list[dict[str, Any]]:
    url = f"http://{up.environment['BERTH_REST_HTTP']}/v1/problems"
    answer = httpx.get(url, headers={"x-auth-token": "admin"}, timeout=60.0)
    found: list[dict[str, Any]] = answer.json()["problems"]
    return found


def test_a_sound_berth_has_no_problems_and_no_warnings(up: Up) -> None:
    """Also with settings that name cells which this berth does not have."""
    up.wait_until(lambda: problems(up) == [], "the berth has no problems")
    assert "No known problems." in first_page(up)
    assert over_rest(up) == []
    examined = up.berth("doctor", "--json")
    findings = json.loads(examined.stdout)["findings"]
    assert [each for each in findings if each["level"] != "fine"] == []
    absent = "Nothing of it was ever started: this berth does not have the cell."
    assert [each["about"] for each in findings if each["says"] == absent] == ["cell c3", "cell c4"]
    assert examined.returncode == 0


def connected(up: Up) -> Bus:
    names = ("amqp_url", "database_url", "exchange")
    urls = {name: up.environment[f"BERTH_{name.upper()}"] for name in names}
    return Bus(composition.transport(Settings().having(**urls), "test"))


async def lose_letters_and_starve_requests(up: Up) -> None:
    async with connected(up) as bus:
        now = bus.clock.now()
        for _ in range(LETTERS):
            letter = replace(a_letter(), id=bus.clock.uuid(), first_died=now, died=now)
            await bus.transport.store_dead_letter(letter)
        for _ in range(2):
            request = boot_request(options_named(vcpus=4000, memory_mb=64, disk_gb=1, flavor="huge"))
            waits = parts_given(RequestParts, wait="2h")
            await bus.publish(structs.replace(request, parts=request.parts.having(*waits)))


def test_six_troubles_are_six_problems_with_the_same_sentences_on_every_surface(up: Up) -> None:
    # All hosts are full, so the headroom that is set afterwards covers no loss of a host.
    boot = ("boot", "--vcpus", "32", "--memory-mb", "64", "--disk-gb", "1", "--count", "18", "--wait")
    assert up.berth(*boot).returncode == 0
    assert up.berth("host", "headroom", "set", "host").returncode == 0
    asyncio.run(lose_letters_and_starve_requests(up))
    hosts = [json.loads(line) for line in up.berth("host", "list", "--json").stdout.splitlines()]
    [forced, *_] = [host["host"] for host in hosts if host["cell"] == "c2"]
    assert up.berth("host", "force-down", forced).returncode == 0
    workers = up.workers()
    os.kill(workers["conductor.c2"], signal.SIGKILL)
    os.kill(workers["compute.c1"], signal.SIGSTOP)
    try:
        up.wait_until(lambda: kinds_of(problems(up)) == PROBLEMS, "all troubles are listed, and no others")
        check_sentences(problems(up), forced)
        check_surfaces(up)
    finally:
        os.kill(workers["compute.c1"], signal.SIGCONT)


def kinds_of(found: list[dict[str, Any]]) -> list[str]:
    return sorted(each["kind"] for each in found)


def check_sentences(found: list[dict[str, Any]], forced: str) -> None:
    says = {each["kind"]: each["says"] for each in found}
    assert says["agent-late"] == "No heartbeat from c1-agent1 of cell c1: 3 hosts down."
    assert says["dead-letters"].startswith(f"Dead letters: {LETTERS}, of ")
    assert says["headroom-lost"] == "Failover headroom does not cover the loss of any one host."
    assert says["host-forced-down"] == f"Forced down by an operator: {forced}."
    assert says["process-restarted"] == (
        "conductor.c2 ended without being stopped and was started again, once in the last hour."
    )
    assert says["request-starves"].startswith("Waiting without progress: 2 requests of flavor huge; ")
    assert all(each["since"] for each in found)


def check_surfaces(up: Up) -> None:
    sentences = {each["says"] for each in problems(up)}
    up.wait_until(lambda: sentences == {each["says"] for each in over_rest(up)}, "the REST API lists them")
    up.wait_until(lambda: all(each in first_page(up) for each in sentences), "the first page lists them")
    page = first_page(up)
    assert page.count('<p class="says">') == len(sentences) and "No known problems" not in page
    examined = up.berth("doctor", "--json")
    findings = json.loads(examined.stdout)["findings"]
    assert {each["says"] for each in findings if each["level"] != "fine"} == sentences
    assert examined.returncode == 2
