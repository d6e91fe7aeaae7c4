"""A Keystone over real sockets, for keystoneauth1 and our own clients; and a certificate for 127.0.0.1."""

import json
import ssl
import threading
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ironic_sync.openstack import Access

Answer = tuple[int, dict[str, str], Any]  # status, headers, body

SECRET = "s3cret"
PROJECT = {"project": {"id": "p", "name": "P"}}
KEY = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg2aABDo2V9/O87ZP4
WrUUfmnyQjpH2Gq1bD8dh1j7dVqhRANCAARmOBHF7uIwdtIHQ2IHqE0BwB+x/cNZ
PRNirYn0qOT3IxruxcpBME53L+eoKjMUqCJO2Zm8uB2tlrF6amMciebX
-----END PRIVATE KEY-----
"""
CERTIFICATE = """\
-----BEGIN CERTIFICATE-----
MIIBkDCCATagAwIBAgIUPIH554UhOvHy1dRpQ5RrUKOfB0cwCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJMTI3LjAuMC4xMCAXDTI2MTEyMDEyMTMzNFoYDzIxMjYxMDI3
MTIxMzM0WjAUMRIwEAYDVQQDDAkxMjcuMC4wLjEwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAARmOBHF7uIwdtIHQ2IHqE0BwB+x/cNZPRNirYn0qOT3IxruxcpBME53
L+eoKjMUqCJO2Zm8uB2tlrF6amMciebXo2QwYjAdBgNVHQ4EFgQULlDOixnry0VT
7gP87oFAtaE5K3owHwYDVR0jBBgwFoAULlDOixnry0VT7gP87oFAtaE5K3owDwYD
VR0RBAgwBocEfwAAATAPBgNVHRMBAf8EBTADAQH/MAoGCCqGSM49BAMCA0gAMEUC
IAm9iq3Dvh6sUfNj+MDJNBuEGR210Vg8M3rMwXv8jUCnAiEAtE7jSWimKEjXBeoo
SRETD+dDTLvfe9uACz4HFgzXguM=
-----END CERTIFICATE-----
"""


class AnsweringServer:
    """Answers every request by what `answer` gives: status, headers, body."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.asked: list[dict[str, Any]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"] or 0))
                outer.asked.append(json.loads(body))
                self._say(*outer.answer(len(outer.asked)))

            def do_GET(self) -> None:
                self._say(*outer.read(self.path, dict(self.headers)))

            def _say(self, status: int, headers: dict[str, str], body: Any) -> None:
                content = (body if isinstance(body, str) else json.dumps(body)).encode()
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(content))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def answer(self, number: int) -> Answer:
        """Return the answer to a POST, by its number."""
        raise NotImplementedError

    def read(self, path: str, headers: dict[str, str]) -> Answer:
        return self.answer(0)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


# Keystone's own (keystone/federation, etc/sso_callback_template.html), without its style
WEBSSO_PAGE = """\
<form id="sso" name="sso" action="{origin}" method="post">
Please wait...<br/>
<input type="hidden" name="token" id="token" value="{token}"/>
<noscript><input type="submit" name="submit_no_javascript" value="Continue"/></noscript>
</form>
<script type="text/javascript">window.onload = function() {{ document.forms['sso'].submit(); }}</script>
"""


class FakeKeystone(AnsweringServer):
    """Issues tokens (token-1, token-2, ...) to all clients, and validates the `known` tokens of clients.

    Its WebSSO issues unscoped tokens (unscoped-1, ...) to `federated`, as if the identity provider knew the
    browser's user already.
    """

    status = 201  # of the answer to a client that asks for a token
    read_status = 200  # of the answer to a validation
    lasts = timedelta(hours=1)

    def __init__(self) -> None:
        self.known: dict[str, dict[str, Any]] = {}
        self.expired: set[str] = set()
        self.people: dict[str, tuple[str, ...]] = {}  # roles of users who may sign in with SECRET
        self.trusted_dashboards: set[str] = set()
        self.federated = ""  # name of the browser's user at the identity provider
        self.projects: dict[str, tuple[str, ...]] = {}  # of that user, with the roles
        self.web_sign_ons: list[str] = []  # paths of the requests
        self.validated: list[str] = []
        self.answering = threading.Event()  # cleared: it answers no validation
        self.answering.set()
        super().__init__()

    def know(
        self, token: str, *roles: str, seconds: float = 3600, scope: Any = PROJECT, name: str = ""
    ) -> None:
        ends = (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()
        user = {"id": f"{name or token}-id", "name": f"{name or token}-name"}
        names = [{"id": role, "name": role} for role in roles]
        self.known[token] = {"user": user, "expires_at": ends, "roles": names} | scope
        if seconds < 0:
            self.expired.add(token)

    def read(self, path: str, headers: dict[str, str]) -> Answer:
        if "/OS-FEDERATION/websso/" in path:
            return self.sign_on(path)
        if path.endswith("/auth/projects"):
            return self.projects_of(headers["X-Auth-Token"])
        token = headers["X-Subject-Token"]
        self.validated.append(token)
        self.answering.wait(10)
        if self.read_status != 200:
            return self.read_status, {}, {"error": {"code": self.read_status}}
        if token not in self.known or (token in self.expired and "allow_expired=1" not in path):
            return 404, {}, {"error": {"code": 404}}
        return 200, {}, {"token": self.known[token]}

    def sign_on(self, path: str) -> Answer:
        """Return the page that posts an unscoped token to a trusted dashboard."""
        self.web_sign_ons.append(path)
        [origin] = parse_qs(urlsplit(path).query)["origin"]
        if origin not in self.trusted_dashboards:
            return 401, {}, {"error": {"message": f"{origin} is not a trusted dashboard host", "code": 401}}
        token = f"unscoped-{len(self.web_sign_ons)}"
        self.know(token, scope={}, name=self.federated, seconds=1e9)
        page = WEBSSO_PAGE.format(origin=origin, token=token)
        return 200, {"Content-Type": "text/html"}, page

    def projects_of(self, token: str) -> Answer:
        if self.read_status != 200:
            return self.read_status, {}, {"error": {"code": self.read_status}}
        if token not in self.known or token in self.expired:
            return 401, {}, {"error": {"code": 401}}
        found = [{"id": id_, "name": id_.upper(), "domain_id": "d", "enabled": True} for id_ in self.projects]
        return 200, {}, {"projects": found, "links": {}}

    def rescoped(self, identity: dict[str, Any], project: str, number: int) -> Answer:
        known = self.known.get(identity["token"]["id"])
        roles = self.projects.get(project, ())
        if known is None or identity["token"]["id"] in self.expired or not roles:
            return 401, {}, {"error": {"code": 401}}
        self.know(f"token-{number}", *roles, name=self.federated)
        self.known[f"token-{number}"] |= {
            "expires_at": known["expires_at"],
            "project": {"id": project, "name": project.upper()},
        }
        return 201, {"X-Subject-Token": f"token-{number}"}, {"token": self.known[f"token-{number}"]}

    def answer(self, number: int) -> Answer:
        if self.status != 201:
            return self.status, {}, {"error": {"message": "you may not", "code": self.status}}
        auth = self.asked[-1]["auth"]
        if auth["identity"]["methods"] == ["token"]:
            return self.rescoped(auth["identity"], auth["scope"]["project"]["id"], number)
        user = auth["identity"].get("password", {}).get("user", {})
        if (name := user.get("name")) in self.people:
            if user["password"] != SECRET:
                return 401, {}, {"error": {"code": 401}}
            self.know(f"token-{number}", *self.people[name], name=name, seconds=1e9)
        regions = [(kind, region) for kind in ("public", "internal") for region in ("north", "south")]
        endpoints = [
            {
                "id": "e",
                "interface": kind,
                "region": region,
                "region_id": region,
                "url": f"http://{kind}.{region}/v1",
            }
            for kind, region in regions
        ]
        catalog = [{"type": "baremetal", "name": "ironic", "id": "s", "endpoints": endpoints}]
        ends = (datetime.now(UTC) + self.lasts).isoformat()
        token: dict[str, Any] = {
            "expires_at": ends,
            "issued_at": ends,
            "methods": ["password"],
            "catalog": catalog,
        }
        token["user"] = {"id": "u", "name": "me"}
        return 201, {"X-Subject-Token": f"token-{number}"}, {"token": token}

    def access(self, **more: Any) -> Access:
        auth = more.pop("auth", None) or {
            "username": "me",
            "password": SECRET,
            "user_domain_name": "Default",
            "project_name": "service",
            "project_domain_name": "Default",
        }
        auth = {"auth_url": f"http://127.0.0.1:{self.port}/v3", **auth}
        return Access(**{"url": "http://i", "auth_type": "v3password", "auth": auth} | more)
