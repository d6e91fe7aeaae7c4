"""Random hostile requests: no response is a 5xx, none takes long, and the server keeps running.

Requests combine valid and invalid parts of the API; `--hostile N` sends more of them, `--seed S` others. The
first failing request is shown as bytes.
"""

from __future__ import annotations

import contextlib
import json
import random
import re
import socket
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from tests.compliance.api import PlacementApi, empty

SECONDS = 2.0  # an answer may take
EVIL_TEXTS = (
    "", " ", "\x00", "a\x00b", "\ud800", "\U0001f4a9", "é" * 300, "A" * 5000, "..", "../..", "%", "%zz", "'",
    '"; DROP TABLE x; --', "null", "NaN", "-1", "0", "1e999", "9" * 400, "in:", "in:,", "!", "!!", "!in:",
    ",", ",,,", ":", "VCPU:", ":1", "VCPU:1:1", "VCPU:-1", "VCPU:99999999999999999999", "CUSTOM_", "true",
    "startswith:", "in:CUSTOM_É", "00000000-0000-0000-0000-00000000000g", "\r\nx: y",
)  # fmt: skip
EVIL_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1.5, 1e308, float("nan"), float("inf"), 2**31, 2**63, 2**64, 10**400, "", [],
    {}, [[]], [None], {"": None}, {"a": {"b": {}}}, *EVIL_TEXTS,
)  # fmt: skip
METHODS = ("GET", "PUT", "POST", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "BREW", "get")
TOKENS = (b"user", b"admin:p", b":", b"", b"admin:", b"\xff")
TYPES = (
    "application/json",
    "application/json; charset=utf-16",
    "text/plain",
    "",
    "application/xml",
    "/",
    ";",
)
VERSIONS = (
    "1.28", "1.38", "1.39", "1.39", "1.0", "1.10", "latest", "1.40", "0.9", "1", "1.x", "", "-1.-1",
    "9" * 500, "1.39, compute 2.1", "١.٣",
)  # fmt: skip
EVIL_HEADERS = (
    b"accept: text/html", b"accept: ;;;", b"accept: */*;q=x", b'if-none-match: "', b"range: bytes=0-",
    b"x-roles: \xff", b"x-openstack-request-id: \xc3\xa9", b"last-event-id: x", b"expect: 100-continue",
    b"transfer-encoding: gzip", b"x-long: " + b"y" * 20_000, b"origin: null", b"connection: upgrade",
)  # fmt: skip
KEYS = (
    "resources", "required", "member_of", "in_tree", "limit", "group_policy", "same_subtree", "root_required",
    "name", "uuid", "project_id", "user_id", "consumer_type", "associated", "after", "verbose",
)  # fmt: skip
ELSEWHERE = ("/", "/nothing/here", "/healthz", "/readyz", "/metrics", "/berth/changes")


class Hostile:
    """Makes one request after the other; the bytes depend on the seed and the number alone."""

    def __init__(self, seed: int, known: list[str]) -> None:
        self.chance = random.Random(seed)
        self.known = known  # ids and names there are, so that some requests get far

    def request(self) -> bytes:
        method, path, made = self.pick(ROUTES)
        if self.likely(0.05):
            method = self.pick(METHODS)
        if self.likely(0.05):
            path = self.pick(ELSEWHERE)
        body = self.body(made if self.likely(0.9) else self.pick(ROUTES)[2])
        lines = [f"{method} ".encode() + self.path(path) + self.query() + b" HTTP/1.1", *self.headers(body)]
        return b"\r\n".join(lines) + b"\r\n\r\n" + body

    def likely(self, share: float) -> bool:
        return self.chance.random() < share

    def pick(self, of: Any) -> Any:
        return self.chance.choice(of)

    def path(self, made: str) -> bytes:
        while "{}" in made:
            before, _, after = made.partition("{}")
            made = before + self.segment(before.endswith(("/resource_providers/", "/allocations/"))) + after
        if self.likely(0.03):
            made += self.pick(("/", "//", "/x", "?", "#", ";x=1", "%2e%2e"))
        return made.encode("utf-8", "surrogatepass")

    def segment(self, id_: bool) -> str:
        if self.likely(0.8):
            return str(self.pick([one for one in self.known if ("-" in one) == id_]))
        return quote(self.text(), safe="%:,!", errors="surrogatepass") or "x"

    def text(self) -> str:
        return str(self.pick(EVIL_TEXTS)) if self.likely(0.7) else str(self.pick(self.known))

    def query(self) -> bytes:
        if self.likely(0.3):
            return b""
        pairs = []
        for _ in range(self.chance.choice((1, 1, 2, 3, 8))):
            key = self.pick(KEYS) + self.pick(("", "", "", "1", "_A", "é", "\x00", "x" * 70))
            pairs.append((key, self.value()))
        if self.likely(0.01):
            pairs = [(key, value[:20]) for key, value in pairs] * 1000
        sent = "&".join(f"{self.quoted(key)}={self.quoted(value)}" for key, value in pairs)
        return ("?" + sent).encode()[:60_000]

    def value(self) -> str:
        sensible = (
            "VCPU:1", "VCPU:1,MEMORY_MB:64", "HW_CPU_X86_AVX", "!CUSTOM_X", "in:HW_CPU_X86_AVX,CUSTOM_X",
            "none", "isolate", "1", "_A", f"in:{self.pick(self.known)}", str(self.pick(self.known)),
        )  # fmt: skip
        made = str(self.pick(sensible)) if self.likely(0.6) else self.text()
        return ",".join([made[:20]] * 3000) if self.likely(0.01) else made

    def quoted(self, text: str) -> str:
        """Sometimes as it is, where that can be sent at all."""
        if self.likely(0.1) and text.isascii() and text.isprintable() and " " not in text:
            return text
        return quote(text, safe=":,!", errors="surrogatepass")

    def headers(self, body: bytes) -> Iterator[bytes]:
        yield b"host: 127.0.0.1"
        if self.likely(0.98):
            yield b"x-auth-token: " + (b"admin" if self.likely(0.95) else self.pick(TOKENS))
        if self.likely(0.9):
            sent = self.pick(VERSIONS[:4] if self.likely(0.85) else VERSIONS)
            yield b"openstack-api-version: placement " + sent.encode()
        if body and self.likely(0.95):
            yield b"content-type: " + self.pick(TYPES[:1] if self.likely(0.85) else TYPES).encode()
        length: bytes | int = len(body)
        if self.likely(0.02):
            length = self.pick((b"-1", b"x", b"", b"1e3", b"9" * 50, max(0, len(body) - 1), len(body) + 1))
        if body or self.likely(0.5):
            yield b"content-length: %s" % (length if isinstance(length, bytes) else b"%d" % length)
        if self.likely(0.1):
            yield self.pick(EVIL_HEADERS)

    def body(self, made: Callable[[Hostile], Any] | None) -> bytes:
        if made is None and self.likely(0.9):
            return b""
        if made is None or self.likely(0.08):
            return bytes(self.pick(RAW_BODIES))
        value = made(self)
        text = json.dumps(self.spoilt(value) if self.likely(0.8) else value)
        if self.likely(0.03):
            text = text[: self.chance.randrange(len(text) + 1)]
        return text.encode("utf-8", "surrogatepass")

    def spoilt(self, value: Any) -> Any:
        if self.likely(0.08):
            return self.pick(EVIL_VALUES)
        if isinstance(value, dict):
            made = {key: self.spoilt(inner) for key, inner in value.items() if not self.likely(0.03)}
            if self.likely(0.05):
                made[self.text()] = self.pick(EVIL_VALUES)
            return made
        return [self.spoilt(inner) for inner in value] if isinstance(value, list) else value

    # What the API takes, to be spoilt

    def resources(self) -> Any:
        return {self.pick(("VCPU", "MEMORY_MB", "CUSTOM_X")): self.chance.randint(1, 5)}

    def inventory(self) -> Any:
        return {
            "total": 8,
            "reserved": 1,
            "min_unit": 1,
            "max_unit": 4,
            "step_size": 1,
            "allocation_ratio": 2.0,
        }

    def claim(self) -> Any:
        return {
            "allocations": {self.pick(self.known): {"resources": self.resources()}}, "project_id": "p",
            "user_id": "u", "consumer_generation": None, "consumer_type": "INSTANCE", "mappings": {"": ["x"]},
        }  # fmt: skip


RAW_BODIES = (
    b"", b"{", b"}", b"[" * 100_000, b'{"a":' * 50_000, b"\xff\xfe{\x00", b"\xef\xbb\xbf{}", b"\x00", b"NaN",
    b'"\\ud800"', b'{"name": "\xff"}', b"1" * 10_000, b"[" + b"1," * 100_000 + b"1]", b'{"a":1,"a":2}',
    b"1e99999", b"-", b'{"name": "a", "name": "b"}', b"{}" * 2, b"x" * 300_000,
)  # fmt: skip


def _inventories(h: Hostile) -> Any:
    classes = ("VCPU", "MEMORY_MB", "CUSTOM_X")
    return {
        "resource_provider_generation": h.chance.randint(0, 3),
        "inventories": {h.pick(classes): h.inventory() for _ in range(2)},
    }


def _reshape(h: Hostile) -> Any:
    inventories = {h.pick(h.known): _inventories(h) for _ in range(2)}
    return {"inventories": inventories, "allocations": {h.pick(h.known): h.claim()}}


def _load(h: Hostile) -> Any:
    one = {
        "id": h.pick(h.known), "name": h.pick(h.known), "parent": None, "traits": ["CUSTOM_X"],
        "inventories": {"VCPU": h.inventory()}, "aggregates": [str(uuid.UUID(int=7))],
    }  # fmt: skip
    return {"providers": [one] * h.chance.randint(1, 3)}


# method, path, body
ROUTES: tuple[tuple[str, str, Callable[[Hostile], Any] | None], ...] = (
    ("GET", "/resource_providers", None),
    ("POST", "/resource_providers", lambda h: {"name": h.pick(h.known), "uuid": h.pick(h.known)}),
    ("GET", "/resource_providers/{}", None),
    ("PUT", "/resource_providers/{}", lambda h: {"name": "x", "parent_provider_uuid": h.pick(h.known)}),
    ("DELETE", "/resource_providers/{}", None),
    ("GET", "/resource_providers/{}/inventories", None),
    ("PUT", "/resource_providers/{}/inventories", _inventories),
    ("POST", "/resource_providers/{}/inventories", lambda h: {"resource_class": "VCPU", **h.inventory()}),
    ("DELETE", "/resource_providers/{}/inventories", None),
    ("GET", "/resource_providers/{}/inventories/{}", None),
    ("PUT", "/resource_providers/{}/inventories/{}",
     lambda h: {"resource_provider_generation": h.chance.randint(0, 3), **h.inventory()}),
    ("DELETE", "/resource_providers/{}/inventories/{}", None),
    ("GET", "/resource_providers/{}/usages", None),
    ("GET", "/resource_providers/{}/aggregates", None),
    ("PUT", "/resource_providers/{}/aggregates",
     lambda h: {"resource_provider_generation": h.chance.randint(0, 3), "aggregates": [h.pick(h.known)]}),
    ("GET", "/resource_providers/{}/traits", None),
    ("PUT", "/resource_providers/{}/traits",
     lambda h: {"resource_provider_generation": h.chance.randint(0, 3), "traits": ["CUSTOM_X"]}),
    ("DELETE", "/resource_providers/{}/traits", None),
    ("GET", "/resource_providers/{}/allocations", None),
    ("GET", "/resource_classes", None),
    ("POST", "/resource_classes", lambda h: {"name": "CUSTOM_Y"}),
    ("GET", "/resource_classes/{}", None),
    ("PUT", "/resource_classes/{}", lambda h: {"name": "CUSTOM_Z"}),
    ("DELETE", "/resource_classes/{}", None),
    ("GET", "/traits", None),
    ("GET", "/traits/{}", None),
    ("PUT", "/traits/{}", None),
    ("DELETE", "/traits/{}", None),
    ("POST", "/allocations", lambda h: {h.pick(h.known): h.claim()}),
    ("GET", "/allocations/{}", None),
    ("PUT", "/allocations/{}", lambda h: h.claim()),
    ("DELETE", "/allocations/{}", None),
    ("GET", "/allocation_candidates", None),
    ("GET", "/allocation_candidates", None),
    ("GET", "/berth/explain", None),
    ("GET", "/usages", None),
    ("POST", "/reshaper", _reshape),
    ("POST", "/berth/providers", _load),
)  # fmt: skip


class Unanswered(Exception):
    pass


def promised(request: bytes) -> bool:
    """Does it announce more than it brings?"""
    head, _, body = request.partition(b"\r\n\r\n")
    length = re.search(rb"\r\ncontent-length: (\d+)(\r|$)", head)
    return b"\r\ntransfer-encoding: " in head or (length is not None and int(length[1]) > len(body))


def send(port: int, request: bytes) -> int:
    """The status of the answer; 0 when the server hung up instead, as it may on what is no HTTP."""
    with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as connection:
        try:
            connection.sendall(request)
            if promised(request):
                with contextlib.suppress(OSError):  # the server may have hung up already
                    connection.shutdown(socket.SHUT_WR)
            head = b""
            while b"\r\n\r\n" not in head:
                part = connection.recv(65536)
                if not part:
                    break
                head += part
        except TimeoutError:
            raise Unanswered from None
        except ConnectionError:
            return 0
    if head[9:12] == b"100":
        head = head.partition(b"\r\n\r\n")[2]
    return int(head[9:12]) if head else 0


def refuse(port: int, request: bytes) -> int:
    """The status, which must be a good one. Slow once may be the machine; slow three times is the server."""
    for _ in range(3):
        started = time.monotonic()
        try:
            status = send(port, request)
        except Unanswered:
            continue
        sent = request[:3000]
        assert status < 500 or status in (501, 505), f"answered {status}: {sent!r}"
        if time.monotonic() - started < SECONDS:
            return status
    pytest.fail(f"no answer within {SECONDS} s: {request[:3000]!r}", pytrace=False)


def furnish(api: PlacementApi) -> list[str]:
    empty(api)
    root, child, consumer = (str(uuid.UUID(int=number)) for number in (1, 2, 3))
    api.do("PUT", "/resource_classes/CUSTOM_X")
    api.do("PUT", "/traits/CUSTOM_X")
    for id_, parent in ((root, None), (child, root)):
        api.do("POST", "/resource_providers", {"name": id_, "uuid": id_, "parent_provider_uuid": parent})
        inventories = {"VCPU": {"total": 8}, "MEMORY_MB": {"total": 4096}}
        body = {"inventories": inventories, "resource_provider_generation": 0}
        api.do("PUT", f"/resource_providers/{id_}/inventories", body)
    claim = {
        "allocations": {child: {"resources": {"VCPU": 1}}}, "project_id": "p", "user_id": "u",
        "consumer_generation": None, "consumer_type": "INSTANCE",
    }  # fmt: skip
    api.do("PUT", f"/allocations/{consumer}", claim)
    return [root, child, consumer, "VCPU", "CUSTOM_X", "HW_CPU_X86_AVX"]


def test_hostile_requests_do_not_break_the_server(api: PlacementApi, pytestconfig: pytest.Config) -> None:
    port = urlsplit(api.wire.base_url).port
    assert port is not None
    hostile = Hostile(pytestconfig.getoption("--seed"), furnish(api))
    answered: Counter[int] = Counter()
    for number in range(pytestconfig.getoption("--hostile")):
        answered[refuse(port, hostile.request())] += 1
        if number % 200 == 0:
            furnish(api)  # what was taken away comes back
    api.do("GET", "/allocation_candidates?resources=VCPU:1")
    api.do("POST", "/resource_providers", {"name": "still here"})
    for status in (200, 201, 204, 400, 401, 403, 404, 405, 406, 409, 415):
        assert answered[status], f"never answered {status}: {answered}"  # else too few requests get anywhere


LONG = ",".join(f"CLASS_{number}:1" for number in range(10_000))
GROUPS = "&".join(f"resources{number}=VCPU:1" for number in range(10_000))


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/resource_providers", b"[" * 2_000_000),
        ("POST", "/resource_providers", b'{"name":"' + b"x" * 30_000_000 + b'"}'),
        ("PUT", f"/allocations/{uuid.UUID(int=9)}", b'{"allocations":' * 100_000),
        ("POST", "/reshaper", b'{"inventories":{"' + b"x" * 5_000_000 + b'":{}}}'),
        ("POST", "/berth/providers", b"[" * 1_000_000),
        ("GET", f"/allocation_candidates?resources={LONG}", b""),
        ("GET", f"/allocation_candidates?group_policy=none&{GROUPS}", b""),
        ("GET", f"/resource_providers?member_of=in:{','.join([str(uuid.UUID(int=1))] * 10_000)}", b""),
        ("GET", f"/resource_providers?resources={LONG}", b""),
        ("GET", f"/traits?name=in:{','.join(['CUSTOM_X'] * 10_000)}", b""),
        ("GET", "/" + "x" * 100_000, b""),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_too_much_is_refused_in_time(api: PlacementApi, method: str, path: str, body: bytes) -> None:
    port = urlsplit(api.wire.base_url).port
    assert port is not None
    lines = (f"{method} {path} HTTP/1.1", "host: 127.0.0.1", "x-auth-token: admin", "connection: close",
             "openstack-api-version: placement 1.39", "content-type: application/json",
             f"content-length: {len(body)}")  # fmt: skip
    refuse(port, "\r\n".join(lines).encode() + b"\r\n\r\n" + body)
    api.do("GET", "/resource_providers")
