"""The system's Chromium, headless, driven over a pipe by its DevTools protocol: no port, no driver."""

import asyncio
import itertools
import json
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from deploy.servers import BinariesMissing

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_APPLICATIONS = (
    Path("/Applications/Chromium.app/Contents/MacOS/Chromium"),
    Path("/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"),
)
_OPTIONS = (
    "--headless",
    "--no-sandbox",  # #36 |
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--no-first-run",
    "--no-default-browser-check",
    "--hide-scrollbars",
    "--mute-audio",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
    "--remote-debugging-pipe",
)
# Makes the two pipes the file descriptors 3 and 4, which the browser uses, and runs the browser.
_AT_3_AND_4 = (
    "import os, sys; from fcntl import fcntl, F_DUPFD_CLOEXEC as high;"
    "ends = [fcntl(int(end), high, 10) for end in sys.argv[1:3]];"
    "os.dup2(ends[0], 3); os.dup2(ends[1], 4); os.execv(sys.argv[3], sys.argv[3:])"
)
SECONDS = 90.0  # time limit of the browser's answers; long, because the machine may be busy

OnEvent = Callable[[str, dict[str, Any]], None]


class BrowserGone(Exception):
    pass


class PageLeft(BrowserGone):
    """Error: the page navigated to another page while a script was evaluated in it."""


def find_chromium() -> Path:
    """Return the path of the browser that BERTH_TEST_BROWSER names, else of an installed Chromium."""
    given = os.environ.get("BERTH_TEST_BROWSER")
    if given:
        if not os.access(given, os.X_OK):
            raise BinariesMissing(f"BERTH_TEST_BROWSER names {given}, which cannot be run")
        return Path(given)
    found = next(filter(None, map(shutil.which, (*_NAMES, *map(str, _APPLICATIONS)))), None)
    if found:
        return Path(found)
    raise BinariesMissing(
        "Chromium is not installed: run scripts/install-browser, or let BERTH_TEST_BROWSER name one"
    )


class Chromium:
    def __init__(self, talking: asyncio.StreamWriter) -> None:
        self._talking = talking
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._heard: dict[str, OnEvent] = {}  # by session
        self._ended = ""

    async def tell(self, method: str, session: str = "", **given: Any) -> dict[str, Any]:
        """Call a method of the DevTools protocol, in a session if given; return its result."""
        if self._ended:
            raise BrowserGone(self._ended)
        number = next(self._numbers)
        reply = {"id": number, "method": method, "params": given}
        if session:
            reply["sessionId"] = session
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        self._talking.write(json.dumps(reply).encode() + b"\0")
        try:
            async with asyncio.timeout(SECONDS):
                await self._talking.drain()
                given_back: dict[str, Any] = await answer
                return given_back
        except TimeoutError:
            raise BrowserGone(f"no answer to {method} within {SECONDS:.0f} s") from None
        finally:
            self._waiting.pop(number, None)

    def listen(self, session: str, on_event: OnEvent) -> None:
        self._heard[session] = on_event

    def forget(self, session: str) -> None:
        self._heard.pop(session, None)

    async def handle(self, listening: asyncio.StreamReader) -> None:
        while True:
            try:
                answer = json.loads((await listening.readuntil(b"\0"))[:-1])
            except asyncio.IncompleteReadError:
                break
            if (number := answer.get("id")) is not None:
                waiting = self._waiting.get(number)
                if waiting is None or waiting.done():
                    continue
                if "error" in answer:
                    problem = str(answer["error"])
                    waiting.set_exception((PageLeft if "navigated" in problem else BrowserGone)(problem))
                else:
                    waiting.set_result(answer["result"])
            elif events := self._heard.get(answer.get("sessionId", "")):
                events(answer["method"], answer.get("params", {}))
        self._ended = "the browser has ended"
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(BrowserGone(self._ended))


@asynccontextmanager
async def a_chromium() -> AsyncIterator[Chromium]:
    loop = asyncio.get_running_loop()
    hears, tells = os.pipe()
    listens, says = os.pipe()
    profile = tempfile.mkdtemp(prefix="berth-browser-")
    with tempfile.TemporaryFile() as complaints:
        python = sys.executable, "-ISc", _AT_3_AND_4, str(hears), str(says)
        process = await asyncio.create_subprocess_exec(
            *python, str(find_chromium()), *_OPTIONS, f"--user-data-dir={profile}", "about:blank",
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=complaints,
            pass_fds=(hears, says),
        )  # fmt: skip
        os.close(hears)
        os.close(says)
        listening = asyncio.StreamReader(limit=256 << 20)
        reading, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(listening), os.fdopen(listens, "rb")
        )
        writing, protocol = await loop.connect_write_pipe(
            asyncio.streams.FlowControlMixin, os.fdopen(tells, "wb")
        )
        browser = Chromium(asyncio.StreamWriter(writing, protocol, None, loop))
        watching = loop.create_task(browser.handle(listening))
        try:
            await browser.tell("Browser.getVersion")
            yield browser
        except BrowserGone as gone:
            complaints.seek(0)
            reply = complaints.read().decode(errors="replace")[-2000:]
            raise BrowserGone(f"{gone}\n{reply}") from gone
        finally:
            await _end(process, browser)
            await watching
            reading.close()
            writing.close()
            shutil.rmtree(profile, ignore_errors=True)


async def _end(process: asyncio.subprocess.Process, browser: Chromium) -> None:
    try:
        async with asyncio.timeout(10):
            await browser.tell("Browser.close")
            await process.wait()
    except (BrowserGone, TimeoutError):
        if process.returncode is None:
            process.kill()
        await process.wait()
