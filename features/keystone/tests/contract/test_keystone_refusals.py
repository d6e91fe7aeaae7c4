"""Refusals that name Keystone, and the findings of `berth doctor`."""

from contextlib import closing
from pathlib import Path

import pytest

from berth.doctor.judgement import judged
from berth.doctor.looking import inspect
from berth.settings import Settings
from features.keystone.tokens import Unauthorized
from placement_worker.http.extension import Headers, Identity
from tests.support.fake_keystone import FakeKeystone
from tests.support.http_placement import an_api
from tests.support.waiting import in_time

MEMORY = "sqlite+aiosqlite://"


async def a_request_without_a_token(headers: Headers) -> Identity | None:
    return None


async def test_a_refusal_can_name_keystone() -> None:
    url = "http://keystone/v3"
    async with an_api(
        MEMORY, authenticate=a_request_without_a_token, unauthorized=lambda: Unauthorized(url)
    ) as near:
        answer = await near("GET", "/resource_providers")
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, f'Keystone uri="{url}"')
    why = "The request you have made requires authentication."
    assert answer.json() == {"error": {"code": 401, "title": "Unauthorized", "message": why}}


async def test_doctor_checks_keystone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keystone = FakeKeystone()
    for name, value in keystone.access().auth.items():
        monkeypatch.setenv(f"OS_{name.upper()}", value)
    settings = Settings().having(
        state_dir=str(tmp_path), cells=("c1",), placement_auth="keystone", placement_cloud="envvars"
    )
    with closing(keystone):
        [fine] = [each for each in judged(await in_time(inspect(settings))) if each.about == "Keystone"]
        assert (fine.level, fine.says[:19]) == ("fine", "It checks tokens at")
        keystone.status = 401
        [broken] = [each for each in judged(await in_time(inspect(settings))) if each.about == "Keystone"]
    assert broken.level == "broken"
    assert broken.says.startswith("No token can be checked: Keystone at ") and "(401)" in broken.says
