"""Refusals that name Keystone, and the findings of `berth doctor`."""

from contextlib import closing
from pathlib import Path

import pytest

from berth.kit import Settings
from berth.kit.testing import diagnosis
from features.keystone.tokens import KeystoneTokens
from tests.support.fake_keystone import FakeKeystone
from tests.support.http_placement import an_api
from tests.support.waiting import in_time

MEMORY = "sqlite+aiosqlite://"


async def test_a_refusal_can_name_keystone() -> None:
    with closing(FakeKeystone()) as keystone:
        async with KeystoneTokens(keystone.access()) as tokens, an_api(MEMORY, tokens=tokens) as near:
            answer = await near("GET", "/resource_providers")
    named = f'Keystone uri="{keystone.access().keystone_url}"'
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, named)
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
        [fine] = [each for each in await in_time(diagnosis(settings)) if each.about == "Keystone"]
        assert (fine.level, fine.says[:19]) == ("fine", "It checks tokens at")
        keystone.status = 401
        [broken] = [each for each in await in_time(diagnosis(settings)) if each.about == "Keystone"]
    assert broken.level == "broken"
    assert broken.says.startswith("No token can be checked: Keystone at ") and "(401)" in broken.says
