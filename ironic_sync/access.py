"""Authentication at Ironic's API (anonymous, basic, or a Keystone token) and TLS trust."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import httpx

from bus.errors import Unavailable

if TYPE_CHECKING:
    from keystoneauth1.access import AccessInfo
    from keystoneauth1.identity.v3 import ApplicationCredential, Password
    from keystoneauth1.session import Session

SERVICE = "baremetal"
SPARE_SECONDS = 60  # a token that expires sooner is replaced


class IronicUnavailable(Unavailable):
    """Ironic or its Keystone is unreachable or overloaded; retry later."""


class IronicRefused(Exception):
    """Ironic or its Keystone refuses the request; the text says why."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"Ironic refused ({status}): {text}")
        self.status = status
        self.text = text


@dataclass(frozen=True, kw_only=True)
class Access:
    """The address of Ironic's API and the credentials for it."""

    url: str = ""  # empty: from Keystone's catalogue
    auth: Literal["none", "basic", "keystone"] = "none"
    user: str = ""
    password: str = field(default="", repr=False)
    ca_file: str = ""  # empty: the certificate authorities that this machine trusts
    cert_file: str = ""  # our client certificate, if Ironic requires one
    key_file: str = ""
    insecure: bool = False
    timeout: float = 30.0
    # For Keystone
    auth_url: str = ""
    user_domain: str = "Default"
    project: str = ""
    project_domain: str = "Default"
    system_scope: str = ""  # "all" instead of a project: system scope
    application_credential_id: str = ""  # instead of a user
    application_credential_secret: str = field(default="", repr=False)
    region: str = ""
    interface: str = "public"

    def __post_init__(self) -> None:
        if not self.url and self.auth != "keystone":
            raise ValueError("the url of Ironic's API is missing; only Keystone's catalogue could tell it")
        if self.url and httpx.URL(self.url).userinfo:
            raise ValueError("the url of Ironic's API names a user: say user and password by themselves")
        if self.auth == "basic" and not self.user:
            raise ValueError("basic authentication takes a user and a password")
        if self.auth_url and httpx.URL(self.auth_url).userinfo:
            raise ValueError("the auth_url of Keystone names a user: say user and password by themselves")
        if self.auth == "keystone" and not self.auth_url:
            raise ValueError("Keystone authentication takes the auth_url of Keystone")

    def trust(self) -> ssl.SSLContext:
        """Return the TLS context, reading the certificate files."""
        context = ssl.create_default_context(cafile=self.ca_file or None)
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.cert_file:
            context.load_cert_chain(self.cert_file, self.key_file or None)
        return context


class Keystone(httpx.Auth):
    """Adds a token to every request. keystoneauth1 blocks, so it runs in a thread."""

    def __init__(self, access: Access) -> None:
        self._way_in = access
        self._made: tuple[Session, Password | ApplicationCredential] | None = None
        self._held: AccessInfo | None = None
        self._one_at_a_time = asyncio.Lock()

    async def async_auth_flow(self, request: httpx.Request) -> AsyncGenerator[httpx.Request, httpx.Response]:
        token = await self._token()
        request.headers["X-Auth-Token"] = token
        response = yield request
        if response.status_code == 401:
            request.headers["X-Auth-Token"] = await self._token(refused=token)
            yield request

    async def endpoint(self) -> str:
        """Return Ironic's address from Keystone's catalogue."""
        await self._token()
        assert self._held is not None
        way_in = self._way_in
        with _our_errors(way_in.auth_url):
            found = self._held.service_catalog.url_for(
                service_type=SERVICE, interface=way_in.interface, region_name=way_in.region or None
            )
        return str(found)

    async def _token(self, refused: str = "") -> str:
        """Return a valid token. `refused` is a token that was rejected, whatever its expiry."""
        async with self._one_at_a_time:
            held = self._held
            if held is None or held.auth_token == refused or held.will_expire_soon(SPARE_SECONDS):
                held = self._held = await asyncio.to_thread(self._ask)
            return str(held.auth_token)

    def _ask(self) -> "AccessInfo":
        from keystoneauth1.session import Session  # slow to import, and rarely needed

        way_in = self._way_in
        if self._made is None:
            session = Session(
                verify=(way_in.ca_file or True) if not way_in.insecure else False,
                cert=(way_in.cert_file, way_in.key_file) if way_in.cert_file else None,
                timeout=way_in.timeout,
            )
            self._made = session, self._identity()
        session, identity = self._made
        with _our_errors(way_in.auth_url):
            return identity.get_auth_ref(session)

    def _identity(self) -> "Password | ApplicationCredential":
        from keystoneauth1.identity.v3 import ApplicationCredential, Password

        way_in = self._way_in
        if way_in.application_credential_id:
            return ApplicationCredential(
                way_in.auth_url,
                application_credential_id=way_in.application_credential_id,
                application_credential_secret=way_in.application_credential_secret,
            )
        return Password(
            way_in.auth_url,
            username=way_in.user,
            password=way_in.password,
            user_domain_name=way_in.user_domain,
            system_scope=way_in.system_scope or None,
            project_name=None if way_in.system_scope else way_in.project or None,
            project_domain_name=None if way_in.system_scope else way_in.project_domain,
        )


@contextmanager
def _our_errors(url: str) -> Iterator[None]:
    """Translate keystoneauth1's exceptions."""
    from keystoneauth1 import exceptions

    try:
        yield
    except (exceptions.ConnectionError, exceptions.HttpServerError) as problem:
        raise IronicUnavailable(f"Keystone at {url}: {problem}") from None
    except exceptions.ClientException as problem:
        status = getattr(problem, "http_status", 401)
        raise IronicRefused(status, f"Keystone at {url}: {problem}") from None
