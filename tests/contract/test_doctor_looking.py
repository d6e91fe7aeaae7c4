"""`berth doctor` on real services with things broken on purpose, and in an embedded berth."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from berth import wiring, worker_roles
from berth.commands.audit import examine
from berth.commands.run import ready
from berth.commands.terminal import Cli
from berth.doctor import looking
from berth.doctor.judgement import Finding, judged
from berth.doctor.looking import look
from berth.embedded import embedded
from berth.settings import Settings
from bus.delivery.runner import Bus
from bus.sql.migrations import migrate
from tests.support.envelopes import a_letter, an_envelope
from tests.support.waiting import in_time, until

QUIET = {"cells": ("c1",), "hosts": 2}


def of(found: list[Finding], level: str) -> dict[str, str]:
    return {finding.about: finding.says for finding in found if finding.level == level}


async def test_an_embedded_berth_is_examined_and_found_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = Settings().having(state_dir=str(tmp_path), **QUIET)
    async with embedded(settings, open_socket=True) as house:
        await ready(house.bus, settings)
        found = judged(await in_time(look(settings)))
        assert {"worker placement", "worker scheduler", "worker conductor.c1"} <= of(found, "fine").keys()
        assert {"database placement", "database scheduler", "database cell_c1"} <= of(found, "fine").keys()
        assert not of(found, "broken")
        told = io.StringIO()
        code = await in_time(examine(Cli(settings, True, Console(file=told, width=500))))
    said = json.loads(capsys.readouterr().out)
    assert said["exit_code"] == code
    assert {one["about"] for one in said["findings"]} >= {"Python", "worker placement"}


async def test_a_missing_berth_is_reported(tmp_path: Path) -> None:
    found = judged(await in_time(look(Settings().having(state_dir=str(tmp_path), **QUIET))))
    assert "no berth answers" in of(found, "broken")["bus"]
    assert of(found, "broken")["database placement"] == "It was never made: it has no tables."
    assert list(tmp_path.iterdir()) == [], "looking makes no files"


@pytest.mark.services
async def test_planted_faults_are_found(
    amqp_url: str, database_url: str, bus_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looking, "ANSWER_SECONDS", 1.0)
    said: dict[str, Any] = {"amqp_url": amqp_url, "database_url": database_url, "exchange": bus_name, **QUIET}
    settings = Settings().having(**said)
    placement = wiring.database(settings, worker_roles.Role("placement"))
    try:
        await migrate(placement, "placement_worker")
    finally:
        await placement.close()
    scheduler = {spec.name: spec for spec in wiring.queues(settings)[worker_roles.Role("scheduler")]}
    asked = scheduler["scheduler:build.requested"]
    async with Bus(wiring.transport(settings, "test")) as bus:
        transport = bus.transport
        await transport.declare(asked)
        await transport.publish([an_envelope(key="build.requested")], expected=[True])
        await transport.store_dead_letter(a_letter(queue="scheduler:build.requested"))

        async def buried() -> bool:
            return len(await transport.dead_letters()) == 1

        await until(buried)
        asked = scheduler["ask:scheduler.waiting"]
        await transport.declare(asked)
        found = judged(await in_time(look(settings)))
        again = judged(await in_time(look(settings)))
    silent = "Nobody reads it, and no messages wait."
    assert of(again, "warning")["queue ask:scheduler.waiting"] == silent, "nobody is asked who is not there"
    broken, warned = of(found, "broken"), of(found, "warning")
    assert broken["queue scheduler:build.requested"] == "Nobody reads it, and 1 message waits."
    assert broken["database cell_c1"] == "It was never made: it has no tables."
    assert "worker placement" in broken, "nobody answers"
    assert warned["worker conductor.c1"] == "It was never here: none of its queues is there."
    assert "1 dead letters" in warned["dead letters"]
    assert "database placement" in of(found, "fine")
    assert any(about.startswith("RabbitMQ") for about in of(found, "fine"))

    wrong = amqp_url.replace("@", "x@") if "@" in amqp_url else amqp_url.replace("//", "//nobody:no@")
    shut_out = judged(await in_time(look(Settings().having(**said | {"amqp_url": wrong}))))
    assert any("credentials" in says for says in of(shut_out, "broken").values())
    assert "x@" not in str(shut_out)
