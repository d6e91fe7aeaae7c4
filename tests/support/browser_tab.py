"""A browser tab for tests: found by visible text, driven by mouse and keyboard.

Errors in the console, violations of the page's policy, and requests to other hosts fail the test.
"""

import base64
import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.support.chromium import BrowserGone, Chromium
from tests.support.waiting import until

_KEYS = {"Tab": (9, ""), "Enter": (13, "\r"), "ArrowRight": (39, "")}
BY_COLOUR = ("color-contrast", "link-in-text-block")  # rules of axe
_LEVELS = ("error", "warning", "assert")


class Tab:
    def __init__(self, browser: Chromium, session: str, origin: str) -> None:
        self._browser = browser
        self._session = session
        self._loads = 0
        self.origin = origin
        self.troubles: list[str] = []
        self._open_requests: dict[str, tuple[str, str]] = {}  # id → the page that made it, and its address
        self._expected: list[str] = []

    async def tell(self, method: str, **given: Any) -> dict[str, Any]:
        return await self._browser.tell(method, self._session, **given)

    async def wide(self, width: int, height: int = 900) -> None:
        screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        await self.tell("Emulation.setDeviceMetricsOverride", **screen)

    async def colours(self, scheme: str) -> None:
        """Emulate a system with a `light` or `dark` colour scheme."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        await self.tell("Emulation.setEmulatedMedia", features=features)

    # Navigation

    async def open(self, path: str) -> None:
        async with self.loading():
            await self.tell("Page.navigate", url=self.origin + path)

    @asynccontextmanager
    async def loading(self) -> AsyncIterator[None]:
        before = self._loads
        yield
        await until(lambda: self._loads > before, "another page is loaded", picture=lambda: self.troubles)

    async def path(self) -> str:
        return str(await self.evaluate("location.pathname"))

    async def sign_in(self, token: str) -> None:
        await self.open("/login")
        await self.fill("input[name=token]", token)
        async with self.loading():
            await self.press("Enter")

    async def still(self) -> None:
        what = "all that it asks for is there"
        await until(lambda: not self._open_requests, what, picture=lambda: self._open_requests)
        await self.evaluate("new Promise((then) => requestAnimationFrame(() => requestAnimationFrame(then)))")

    async def heard_out(self) -> None:
        await self.evaluate("new Promise((then) => setTimeout(then))")

    # Reading

    async def evaluate(self, script: str) -> Any:
        """Return the value of a JavaScript expression in the page; await the value if it is a promise."""
        reply = await self.tell(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True, userGesture=True
        )
        if "exceptionDetails" in reply:
            wrong = reply["exceptionDetails"]
            raise AssertionError(wrong.get("exception", {}).get("description", wrong["text"]))
        return reply["result"].get("value")

    async def text(self, selector: str = "main") -> str:
        reply = await self.evaluate(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''")
        return " ".join(str(reply).split())

    async def sees(self, text: str | re.Pattern[str], selector: str = "main") -> None:
        loads = self._loads
        wanted = re.compile(re.escape(text)) if isinstance(text, str) else text

        async def seen() -> bool:
            return wanted.search(await self.text(selector)) is not None

        await until(seen, f"{text!r} is seen in {selector}", picture=lambda: self.text(selector))
        assert self._loads == loads, "the page was loaded again"

    async def number_of(self, selector: str) -> int:
        return int(await self.evaluate(f"document.querySelectorAll({json.dumps(selector)}).length"))

    async def click(self, selector: str) -> None:
        box = await self.evaluate(
            f"""(() => {{
                const found = document.querySelector({json.dumps(selector)});
                if (!found) return null;
                found.scrollIntoView({{ block: "center", behavior: "instant" }});
                const box = found.getBoundingClientRect();
                return {{ x: box.x + box.width / 2, y: box.y + box.height / 2 }};
            }})()"""
        )
        assert box, f"there is no {selector}"
        for what in ("mousePressed", "mouseReleased"):
            await self.tell("Input.dispatchMouseEvent", type=what, button="left", clickCount=1, **box)

    async def fill(self, selector: str, text: str) -> None:
        field = f"document.querySelector({json.dumps(selector)})"
        await self.evaluate(f"({field}.focus(), {field}.select?.())")
        await self.tell("Input.insertText", text=text)

    async def press(self, *names: str) -> None:
        for name in names:
            await self._key("keyDown", name)
            await self._key("keyUp", name)

    async def _key(self, event: str, name: str) -> None:
        number, text = _KEYS[name]
        typed = {"text": text} if text and event == "keyDown" else {}
        given = {"key": name, "code": name, "windowsVirtualKeyCode": number, **typed}
        await self.tell("Input.dispatchKeyEvent", type=event, **given)

    # Checks

    async def screenshot(self, path: Path) -> None:
        """Write a picture of the whole page, not only of the visible part, to the file."""
        size = (await self.tell("Page.getLayoutMetrics"))["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        made = await self.tell("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(made["data"]))

    async def axe(self) -> list[str]:
        """Return violations of all rules but those about colours, on the whole page."""
        rules = {rule: {"enabled": False} for rule in BY_COLOUR}
        return await self._axe("document", rules=rules)

    async def axe_colours(self) -> list[str]:
        """Return violations of rules about colours, which are slow: one of several equal rows is checked."""
        await self.evaluate(_MARK_REPEATED)
        return await self._axe("{exclude: [['[data-repeated]']]}", runOnly=_only(*BY_COLOUR))

    async def axe_width(self) -> list[str]:
        """Return violations of rules that depend on the width of the screen."""
        return await self._axe("document", runOnly=_only("scrollable-region-focusable"))

    async def _axe(self, where: str, **options: Any) -> list[str]:
        if not await self.evaluate("'axe' in window"):
            await self.evaluate(_axe())
        how = json.dumps({"resultTypes": ["violations"], "preload": False, **options})
        found = await self.evaluate(f"axe.run({where}, {how}).then((said) => said.violations)")
        return [
            f"{one['id']}: {one['help']}: {node['html'][:160]} ({node.get('failureSummary', '')[:300]})"
            for one in found
            for node in one["nodes"]
            if one["impact"] in ("serious", "critical")
        ]

    async def too_wide(self) -> list[str]:
        beyond = await self.evaluate("document.documentElement.scrollWidth - innerWidth")
        return [f"it is {beyond} pixels wider than the screen"] if beyond > 0 else []

    async def stops(self) -> Sequence[str]:
        """Return what has the focus in turn when Tab is pressed; one of several equal rows stays."""
        await self.evaluate(_TO_THE_TOP)
        await self.evaluate(_MARK_REPEATED)
        await self.evaluate("document.querySelectorAll('[data-repeated]').forEach((row) => row.remove())")
        found: list[str] = []
        for _ in range(400):
            await self._key("keyDown", "Tab")
            stop = await self.evaluate(_STOP)
            if stop is None:
                break
            found.append(stop["called"])
            if not stop["visible"]:
                self.troubles.append(f"where the keyboard is cannot be seen: {stop['called']}")
        return found

    async def missed(self) -> list[str]:
        return list(await self.evaluate(_MISSED))

    def judged(self) -> None:
        troubles, self.troubles, self._expected = self.troubles, [], []
        assert troubles == [], "\n".join(troubles)

    def expects(self, *texts: str) -> None:
        self._expected += texts

    def events(self, event: str, reply: dict[str, Any]) -> None:
        if event == "Page.loadEventFired":
            self._loads += 1
        elif event == "Runtime.exceptionThrown":
            wrong = reply["exceptionDetails"]
            self._trouble(wrong.get("exception", {}).get("description", wrong["text"]))
        elif event == "Runtime.consoleAPICalled" and reply["type"] in _LEVELS:
            sent = " ".join(str(one.get("value", one.get("description", ""))) for one in reply["args"])
            self._trouble(f"console: {sent}")
        elif event == "Log.entryAdded" and reply["entry"]["level"] in _LEVELS:
            entry = reply["entry"]
            self._trouble(f"{entry['source']}: {entry['text']} {entry.get('url', '')}")
        elif event == "Audits.issueAdded" and reply["issue"]["code"] == "ContentSecurityPolicyIssue":
            self._trouble(f"its policy forbids {reply['issue']['details']}")
        elif event == "Network.requestWillBeSent":
            url = reply["request"]["url"]
            if reply.get("type") != "EventSource":
                self._open_requests[reply["requestId"]] = reply["loaderId"], url
            if urlsplit(url).scheme not in ("data", "blob") and not url.startswith(self.origin + "/"):
                self._trouble(f"asks another host: {url}")

        elif event in ("Network.loadingFinished", "Network.loadingFailed"):
            self._open_requests.pop(reply["requestId"], None)
        elif event == "Page.frameNavigated":
            page = reply["frame"]["loaderId"]
            self._open_requests = {id_: one for id_, one in self._open_requests.items() if one[0] == page}

    def _trouble(self, text: str) -> None:
        if not any(one in text for one in self._expected):
            self.troubles.append(text)


# Refreshes end, as in a hidden tab: one that removes the focused element would move the focus.
_TO_THE_TOP = """(() => {
  Object.defineProperty(document, "hidden", { value: true, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
  document.body.tabIndex = -1;
  document.body.focus();
  document.body.removeAttribute("tabindex");
  scrollTo(0, 0);
  window.stopped = new Set();
})()"""

_STOP = """(() => {
  const on = document.activeElement;
  if (!on || on === document.body || window.stopped.has(on)) return null;
  window.stopped.add(on);
  const style = getComputedStyle(on), box = on.getBoundingClientRect();
  const label = [on.getAttribute("aria-label"), on.labels?.[0]?.innerText, on.innerText, on.title, on.name];
  return {
    called: on.tagName.toLowerCase() + " " + (label.find(Boolean) ?? "").trim().split("\\n")[0].slice(0, 80),
    visible: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1
      && box.width > 0 && box.height > 0
      && box.right > 0 && box.bottom > 0 && box.left < innerWidth && box.top < innerHeight,
  };
})()"""

_MISSED = """[...document.querySelectorAll(
    "a[href], button, input, select, textarea, summary, [tabindex='0']"
  )]
  .filter((one) => one.checkVisibility() && !one.disabled && one.type !== "hidden")
  .filter((one) => !window.stopped.has(one))
  .map((one) => one.outerHTML.slice(0, 120))"""

# Rows of a table or list are equal if they have the same elements and attributes, but for these attributes.
_MARK_REPEATED = r"""(() => {
  const seen = new Map();
  for (const row of document.querySelectorAll("tr, li")) {
    const shape = row.outerHTML.replace(/>[^<]+/g, ">")
      .replace(/ (href|id|for|name|value|title|datetime|aria-[a-z]+|data-repeated)="[^"]*"/g, "");
    const others = seen.get(row.parentElement) ?? new Set();
    row.toggleAttribute("data-repeated", others.has(shape));
    seen.set(row.parentElement, others.add(shape));
  }
})()"""


def _only(*rules: str) -> dict[str, Any]:
    return {"type": "rule", "values": rules}


def _axe() -> str:
    found = find_spec("axe_core_python")
    assert found is not None and found.origin is not None
    return (Path(found.origin).parent / "axe.min.js").read_text(encoding="utf-8")


@asynccontextmanager
async def a_tab(browser: Chromium, origin: str, path: str = "") -> AsyncIterator[Tab]:
    context = (await browser.tell("Target.createBrowserContext"))["browserContextId"]
    page = await browser.tell("Target.createTarget", url="about:blank", browserContextId=context)
    attached = await browser.tell("Target.attachToTarget", targetId=page["targetId"], flatten=True)
    session = attached["sessionId"]
    tab = Tab(browser, session, origin.rstrip("/"))
    browser.listen(session, tab.events)
    try:
        for domain in ("Page", "Runtime", "Log", "Network", "Audits"):
            await tab.tell(f"{domain}.enable")
        await tab.tell("Emulation.setFocusEmulationEnabled", enabled=True)
        await tab.wide(1280)
        if path:
            await tab.open(path)
        yield tab
        await tab.heard_out()
        tab.judged()
    finally:
        browser.forget(session)
        with suppress(BrowserGone):
            await browser.tell("Target.disposeBrowserContext", browserContextId=context)
