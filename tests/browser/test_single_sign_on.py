"""In a browser: the cookies of a sign-in that returns from Keystone, which is another site than the room."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from berth.settings import Settings
from bus.http import listen, serve
from bus.tls import TlsFiles
from tests.support.chromium import Chromium, PageLeft
from tests.support.fake_keystone import CERTIFICATE, KEY, FakeKeystone
from tests.support.visited_room import a_visited_room
from tests.support.waiting import until


@asynccontextmanager
async def a_room_over_tls(keystone: FakeKeystone, directory: Path) -> AsyncIterator[str]:
    """Yield the address of a control room at 127.0.0.1 whose browsers reach Keystone as localhost."""
    tls = TlsFiles(str(directory / "certificate.pem"), str(directory / "key.pem"))
    (directory / "certificate.pem").write_text(CERTIFICATE)
    (directory / "key.pem").write_text(KEY)
    settings = Settings().having(
        placement_auth="keystone",
        placement_cloud="envvars",
        control_room_sso="openid",
        control_room_sso_url=f"http://localhost:{keystone.port}",
    )
    listener = listen("127.0.0.1:0")
    address = f"https://127.0.0.1:{listener.getsockname()[1]}"
    keystone.trusted_dashboards.add(f"{address}/login/sso")
    async with a_visited_room(settings=settings) as room:
        serving = asyncio.create_task(serve(room.app, listener, tls=tls))
        try:
            yield address
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)


async def test_a_user_who_returns_from_keystone_is_signed_in(
    chromium: Chromium, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keystone = FakeKeystone()
    for name, value in keystone.access().auth.items():
        monkeypatch.setenv(f"OS_{name.upper()}", value)
    keystone.federated, keystone.projects = "ann", dict.fromkeys(("p1", "p2"), ("operator",))
    try:
        async with a_room_over_tls(keystone, tmp_path) as address:
            await sign_in(chromium, address)
    finally:
        keystone.close()
    assert len(keystone.web_sign_ons) == 1


async def sign_in(chromium: Chromium, address: str) -> None:
    context = (await chromium.tell("Target.createBrowserContext"))["browserContextId"]
    page = {"url": "about:blank", "browserContextId": context}
    target = (await chromium.tell("Target.createTarget", **page))["targetId"]
    session = (await chromium.tell("Target.attachToTarget", targetId=target, flatten=True))["sessionId"]

    async def evaluate(script: str) -> object:
        found = await chromium.tell("Runtime.evaluate", session, expression=script, returnByValue=True)
        return found["result"].get("value")

    async def shows(script: str) -> None:
        async def is_true() -> bool:
            try:
                return await evaluate(script) is True
            except PageLeft:
                return False

        await until(is_true, script, picture=lambda: evaluate("document.body.innerText"))

    try:
        await chromium.tell("Security.setIgnoreCertificateErrors", session, ignore=True)
        await chromium.tell("Page.navigate", session, url=f"{address}/login")
        link = "document.querySelector('a[href=\"/login/sso/start\"]')"
        await shows(f"{link} !== null")
        await evaluate(f"{link}.click()")
        await shows("document.querySelector('select[name=project]') !== null")
        await evaluate("document.querySelector('button.main').click()")
        await shows("location.pathname == '/' && document.body.innerText.includes('ann-name')")
    finally:
        await chromium.tell("Target.disposeBrowserContext", browserContextId=context)
