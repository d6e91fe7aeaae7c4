"""Run the gabbi files of the published `openstack-placement` against running servers.

    python -m tests.compliance.gabbits [--against berth|placement] [--only 'alloc*'] [--profile NAME ...]

Each profile is a server configuration with the files that need it. The server is started on a free loopback
port with a new database, and stopped. The exit status is 1 if any test fails.
"""

from __future__ import annotations

import argparse
import fnmatch
import sys
import time
import unittest
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from gabbi import handlers, httpclient, suitemaker, utils

from tests.compliance import worlds
from tests.compliance.serving import PROFILES, Profile, Servers
from tests.compliance.wire import HttpWire

_AS_IT_IS = "%/?:@!$&'()*+,;=-._~[]{}|^\\"


class Result(unittest.TestResult):
    def __init__(self) -> None:
        super().__init__()
        self.passed = 0
        self.failed: dict[str, tuple[str, str]] = {}  # name → request, message

    def addSuccess(self, test: Any) -> None:
        self.passed += 1

    def addExpectedFailure(self, test: Any, err: Any) -> None:
        self.passed += 1

    def addUnexpectedSuccess(self, test: Any) -> None:
        self._fail(test, "marked as failing, and passed")

    def addError(self, test: Any, err: Any) -> None:
        self._fail(test, f"{err[0].__name__}: {err[1]}")

    addFailure = addError

    def addSkip(self, test: Any, reason: str) -> None:
        self._fail(test, f"skipped: {reason}")

    def _fail(self, test: Any, why: str) -> None:
        data = test.test_data
        request = f"{data['method']} {getattr(test, 'url', data['url'])}"
        self.failed.setdefault(data["name"], (request, why))  # the first reason is the one


class Http:
    def __init__(self, wire: HttpWire) -> None:
        self.wire = wire

    def request(
        self, uri: str, method: str, body: bytes, headers: Any, redirect: bool, timeout: float
    ) -> tuple[dict[str, str], bytes]:
        url = urlsplit(uri)
        target = quote(url.path + (f"?{url.query}" if url.query else ""), safe=_AS_IT_IS)
        answer = self.wire.send(method, target, {"accept": "*/*"} | _lower(headers), body)
        return {**answer.headers, "status": str(answer.status), "reason": answer.reason}, answer.body


def _lower(headers: Any) -> dict[str, str]:
    pairs = headers.items() if hasattr(headers, "items") else headers
    return {str(name).lower(): str(value) for name, value in pairs}


def published() -> Path:
    """Where the installed package keeps its files."""
    found = find_spec("placement")
    if found is None or found.origin is None:
        sys.exit("openstack-placement is not installed here: use `make compliance`")
    return Path(found.origin).parent / "tests" / "functional" / "gabbits"


def run_file(path: Path, wire: HttpWire) -> Result:
    httpclient.get_http = lambda **_: Http(wire)
    host, port, prefix, _ = utils.host_info_from_target(wire.base_url)
    suite = suitemaker.test_suite_from_dict(
        unittest.TestLoader(),
        path.stem,
        utils.load_yaml(yaml_file=str(path)),
        str(path.parent),
        host,
        port,
        worlds,
        None,
        prefix=prefix,
        handlers=[handler() for handler in handlers.RESPONSE_HANDLERS],
    )
    result = Result()
    suite.run(result)
    return result


def run_profile(profile: Profile, files: Iterable[Path], base_url: str) -> tuple[int, int]:
    worlds.EmptiedServer.base_url = base_url
    wire = HttpWire(base_url)
    passed = failed = 0
    started = time.monotonic()
    for path in files:
        at = time.monotonic()
        result = run_file(path, wire)
        passed += result.passed
        failed += len(result.failed)
        print(
            f"  {path.stem:44} {result.passed:4} passed {len(result.failed):4} failed"
            f" {time.monotonic() - at:6.1f} s",
            flush=True,
        )
        for name, (request, why) in result.failed.items():
            if why != "skipped: fixture failure":
                print(f"    FAILED {name}: {request}\n      {why[:1500]}", flush=True)
    wire.close()
    print(f"{profile.name}: {passed} passed, {failed} failed, {time.monotonic() - started:.0f} s", flush=True)
    return passed, failed


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--against", choices=("berth", "placement"), default="berth")
    parser.add_argument("--only", default="*", help="a pattern of file names without .yaml")
    parser.add_argument("--profile", action="append", choices=[p.name for p in PROFILES])
    parser.add_argument("--base-url", help="test this server instead of starting one; with one --profile")
    given = parser.parse_args(arguments)
    files = sorted(path for path in published().glob("*.yaml") if fnmatch.fnmatch(path.stem, given.only))
    failed = missing = 0
    with Servers(given.against) as servers:
        for profile in PROFILES:
            if given.profile and profile.name not in given.profile:
                continue
            chosen = [path for path in files if profile.needed_by(path.stem)]
            if not chosen:
                continue
            if given.base_url:
                passed, broken = run_profile(profile, chosen, given.base_url)
            else:
                with servers.start(profile) as base_url:
                    passed, broken = run_profile(profile, chosen, base_url)
            failed += broken
            if given.only == "*" and passed + broken < profile.tests:
                print(f"{profile.name}: {profile.tests} tests were expected", flush=True)
                missing += 1
    return 1 if failed or missing else 0


if __name__ == "__main__":
    sys.exit(main())
