"""Raw HTTP: exactly the given bytes are sent, valid or not."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

TIMEOUT = 30.0
_BODIED = ("POST", "PUT", "PATCH")


@dataclass(frozen=True)
class HttpAnswer:
    status: int
    reason: str
    headers: dict[str, str]  # names in lower case
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def text(self) -> str:
        return self.body.decode(errors="replace")


class HttpWire:
    """One kept-alive connection; opened again when the server has closed it."""

    def __init__(self, base_url: str) -> None:
        url = urlsplit(base_url)
        assert url.hostname is not None
        self.base_url = base_url.rstrip("/")
        self.prefix = url.path.rstrip("/")
        self._connection = http.client.HTTPConnection(url.hostname, url.port, timeout=TIMEOUT)

    def send(self, method: str, target: str, headers: Mapping[str, str], body: bytes = b"") -> HttpAnswer:
        """Send it; one more time if the connection was kept too long."""
        fresh = self._connection.sock is None
        try:
            return self._send(method, target, headers, body)
        except (ConnectionError, http.client.BadStatusLine):
            self.close()
            if fresh:
                raise
            return self._send(method, target, headers, body)
        except BaseException:
            self.close()
            raise

    def _send(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> HttpAnswer:
        given = {name.lower() for name in headers}
        self._connection.putrequest(method, target, skip_host="host" in given, skip_accept_encoding=True)
        for name, value in headers.items():
            self._connection.putheader(name, value)
        if "content-length" not in given and (body or method in _BODIED):
            self._connection.putheader("content-length", str(len(body)))
        self._connection.endheaders(body or None)
        response = self._connection.getresponse()
        content = response.read()
        answered: dict[str, str] = {}
        for name, value in response.getheaders():
            name = name.lower()
            answered[name] = f"{answered[name]}, {value}" if name in answered else value
        return HttpAnswer(response.status, response.reason, answered, content)

    def close(self) -> None:
        self._connection.close()
