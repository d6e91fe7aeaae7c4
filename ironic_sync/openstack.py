"""Credentials for OpenStack services (HTTP basic, a Keystone token, or no credentials) and trusted
certificates, read from clouds.yaml or OS_* variables as openstacksdk does.
"""

import asyncio
import os
import ssl
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
from yaml import YAMLError, safe_load  # type: ignore[import-untyped]

from bus.errors import Unavailable

if TYPE_CHECKING:
    from keystoneauth1.access import AccessInfo
    from keystoneauth1.identity import BaseIdentityPlugin
    from keystoneauth1.session import Session

RENEWAL_SECONDS = 60  # a token that expires sooner is replaced


class KeystoneUnavailable(Unavailable):
    """Keystone is unreachable or overloaded; retry later."""


class KeystoneRefused(Exception):
    """Keystone refuses our credentials or a request; the text is the reason."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"Keystone refused ({status}): {text}")
        self.status = status
        self.text = text


@dataclass(frozen=True, kw_only=True)
class Access:
    """The address of an OpenStack service's API, with the credentials and certificates for requests."""

    url: str = ""  # empty: from Keystone's catalogue
    auth_type: str = "none"  # or http_basic, or an identity plugin of keystoneauth1, such as password
    auth: Mapping[str, str] = field(default_factory=dict, repr=False)  # options of the plugin
    region: str = ""  # region in Keystone's catalogue; empty: the first region
    interface: str = "public"  # endpoint interface in Keystone's catalogue
    ca_file: str = ""  # empty: the certificate authorities that this machine trusts
    cert_file: str = ""  # our client certificate, if the service requires one
    key_file: str = ""
    insecure: bool = False  # accept any server certificate
    timeout: float = 30.0

    def __post_init__(self) -> None:
        for setting, url in (("url of Ironic's API", self.url), ("auth_url", self.auth.get("auth_url", ""))):
            if url and not url.startswith(("http://", "https://")):
                raise ValueError(f"the {setting} must begin with http:// or https://")
            if url and httpx.URL(url).userinfo:
                raise ValueError(f"the {setting} contains a user name: give username and password separately")
        if self.key_file and not self.cert_file:
            raise ValueError("a key without its certificate")
        if self.has_tokens:
            self.identity()
        elif not self.url:
            raise ValueError("the url of Ironic's API is missing; only Keystone's catalogue could supply it")
        elif self.auth_type == "http_basic" and not self.auth.get("username"):
            raise ValueError("http_basic requires a username and a password")

    @property
    def has_tokens(self) -> bool:
        """Return whether requests carry tokens of Keystone."""
        return self.auth_type not in ("none", "http_basic")

    @property
    def keystone_url(self) -> str:
        """Return the URL of Keystone's API, version 3."""
        return f"{self.auth['auth_url'].rstrip('/').removesuffix('/v3')}/v3"

    def keystone_client(
        self, *, timeout: float, connections: int = 1, transport: httpx.AsyncBaseTransport | None = None
    ) -> httpx.AsyncClient:
        """Return an HTTP client for Keystone's API with the given credentials; tests pass `transport`."""
        return httpx.AsyncClient(
            auth=self.http_auth(),
            verify=False if self.keystone_url.startswith("http://") else self.trust(),
            transport=transport,
            timeout=timeout,
            limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
            headers={"Accept": "application/json"},
            trust_env=False,
        )

    def identity(self) -> "BaseIdentityPlugin":
        """Return the keystoneauth1 plugin that fetches Keystone tokens with the given credentials."""
        try:  # slow to import, and rarely needed
            from keystoneauth1 import exceptions
            from keystoneauth1.identity import BaseIdentityPlugin
            from keystoneauth1.loading import get_plugin_loader
        except ImportError:
            raise ValueError("keystoneauth1 is not installed: install berth[keystone]") from None
        if not self.auth.get("auth_url"):
            raise ValueError("the auth_url of Keystone is missing")
        try:
            loader: Any = get_plugin_loader(self.auth_type)
            known = {option.dest for option in loader.get_options()}
            if strange := self.auth.keys() - known:
                raise ValueError(f"{', '.join(sorted(strange))}: unknown to the auth_type {self.auth_type}")
            plugin = loader.load_from_options(**self.auth)
        except exceptions.NoMatchingPlugin:
            raise ValueError(f"{self.auth_type!r} is no auth_type of keystoneauth1") from None
        except (exceptions.MissingRequiredOptions, exceptions.OptionError) as problem:
            raise ValueError(str(problem)) from None
        if not isinstance(plugin, BaseIdentityPlugin):
            raise ValueError(f"the auth_type {self.auth_type} fetches no tokens from Keystone")
        return plugin

    def http_auth(self) -> "httpx.BasicAuth | Keystone | None":
        """Return the object that adds the given credentials to httpx requests; None without credentials."""
        if self.auth_type == "http_basic":
            return httpx.BasicAuth(self.auth["username"], self.auth.get("password", ""))
        return Keystone(self) if self.has_tokens else None

    def trust(self) -> ssl.SSLContext:
        """Return the TLS context for connections to the service, made from its certificate files."""
        context = ssl.create_default_context(cafile=self.ca_file or None)
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.cert_file:
            context.load_cert_chain(self.cert_file, self.key_file or None)
        return context


class Keystone(httpx.Auth):
    """Adds a Keystone token to every httpx request; runs keystoneauth1, which is blocking, in a thread."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._made: tuple[Session, BaseIdentityPlugin] | None = None
        self._held: AccessInfo | None = None
        self._one_at_a_time = asyncio.Lock()

    async def async_auth_flow(self, request: httpx.Request) -> AsyncGenerator[httpx.Request, httpx.Response]:
        """Send a request with a token; if it is refused, once more with a new token."""
        token = await self._token()
        request.headers["X-Auth-Token"] = token
        response = yield request
        if response.status_code == 401:
            request.headers["X-Auth-Token"] = await self._token(refused=token)
            yield request

    async def endpoint(self, service_type: str) -> str:
        """Return the API URL of this type of service from Keystone's catalogue."""
        await self._token()
        assert self._held is not None
        access = self._access
        with _our_errors(access.auth["auth_url"]):
            found = self._held.service_catalog.url_for(
                service_type=service_type, interface=access.interface, region_name=access.region or None
            )
        return str(found)

    async def _token(self, refused: str = "") -> str:
        """Return a valid Keystone token, but never `refused`, which the service has rejected."""
        async with self._one_at_a_time:
            held = self._held
            if held is None or held.auth_token == refused or held.will_expire_soon(RENEWAL_SECONDS):
                held = self._held = await asyncio.to_thread(self._ask)
            return str(held.auth_token)

    def _ask(self) -> "AccessInfo":
        from keystoneauth1.session import Session  # slow to import, and rarely needed

        access = self._access
        if self._made is None:
            session = Session(
                verify=(access.ca_file or True) if not access.insecure else False,
                cert=(access.cert_file, access.key_file) if access.cert_file else None,
                timeout=access.timeout,
            )
            self._made = session, access.identity()
        session, identity = self._made
        with _our_errors(access.auth["auth_url"]):
            return identity.get_auth_ref(session)


@contextmanager
def _our_errors(url: str) -> Iterator[None]:
    from keystoneauth1 import exceptions

    try:
        yield
    except (exceptions.ConnectionError, exceptions.HttpServerError) as problem:
        raise KeystoneUnavailable(f"Keystone at {url}: {problem}") from None
    except exceptions.ClientException as problem:
        status = getattr(problem, "http_status", 401)
        raise KeystoneRefused(status, f"Keystone at {url}: {problem}") from None


ENVIRONMENT = "envvars"  # the name of the cloud that the OS_* variables describe, as in openstacksdk
# variables that are no options of authentication → keys of an entry of clouds.yaml
_VARIABLES = {
    "OS_AUTH_TYPE": "auth_type",
    "OS_REGION_NAME": "region_name",
    "OS_INTERFACE": "interface",
    "OS_CACERT": "cacert",
    "OS_CERT": "cert",
    "OS_KEY": "key",
    "OS_INSECURE": "insecure",
    "OS_BAREMETAL_ENDPOINT_OVERRIDE": "baremetal_endpoint_override",
}
_NO_AUTH = {
    *_VARIABLES,
    "OS_CLOUD",
    "OS_CLIENT_CONFIG_FILE",
    "OS_CLIENT_SECURE_FILE",
    "OS_IDENTITY_API_VERSION",
    "OS_ENDPOINT_TYPE",
}


def cloud_access(name: str, environment: Mapping[str, str] = os.environ) -> Access:
    """Return the address and credentials of the cloud with this name in clouds.yaml.

    Raise ValueError, with the file and the key, if the cloud is unknown or cannot be used.
    """
    if name == ENVIRONMENT:
        return _access(_from_variables(environment), "the OS_* variables")
    path = _found("OS_CLIENT_CONFIG_FILE", "clouds", environment)
    if path is None:
        raise ValueError("there is no clouds.yaml in ., ~/.config/openstack or /etc/openstack")
    clouds = _clouds(path)
    if name not in clouds:
        raise ValueError(f"{path} has no cloud {name!r}; it has: {', '.join(sorted(clouds)) or 'none'}")
    entry = clouds[name]
    secure = _found("OS_CLIENT_SECURE_FILE", "secure", environment)
    if secure is not None:
        entry = _merged(entry, _clouds(secure).get(name, {}))
    return _access(entry, f"{path}: {name}")


def secrets_of_cloud(name: str) -> set[str]:
    """Return the cloud's passwords and tokens, which no log may contain; empty if clouds.yaml is unusable."""
    try:
        auth = cloud_access(name).auth
    except ValueError:
        return set()
    return {value for key, value in auth.items() if "password" in key or "secret" in key or "token" in key}


def _found(variable: str, stem: str, environment: Mapping[str, str]) -> Path | None:
    if named := environment.get(variable):
        return Path(named)
    home = Path(environment.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    folders = (Path(), home / "openstack", Path("/etc/openstack"))
    files = (folder / f"{stem}{ending}" for folder in folders for ending in (".yaml", ".yml"))
    return next((file for file in files if file.is_file()), None)


def _clouds(path: Path) -> dict[str, dict[str, Any]]:
    try:
        content = safe_load(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise ValueError(f"{path}: cannot be read: {problem.strerror}") from None
    except (YAMLError, UnicodeDecodeError, RecursionError):
        raise ValueError(f"{path}: not YAML") from None
    clouds = content.get("clouds") if isinstance(content, dict) else None
    if not isinstance(clouds, dict) or not all(isinstance(entry, dict) for entry in clouds.values()):
        raise ValueError(f"{path}: there must be a table `clouds` of tables")
    return {str(name): entry for name, entry in clouds.items()}


def _merged(entry: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(entry)
    for key, value in other.items():
        before = merged.get(key)
        both = isinstance(before, dict) and isinstance(value, dict)
        merged[key] = _merged(before, value) if both else value  # type: ignore[arg-type]
    return merged


def _from_variables(environment: Mapping[str, str]) -> dict[str, Any]:
    entry: dict[str, Any] = {
        key: environment[variable] for variable, key in _VARIABLES.items() if environment.get(variable)
    }
    entry["auth"] = {
        name.removeprefix("OS_").lower(): value
        for name, value in environment.items()
        if name.startswith("OS_") and name not in _NO_AUTH and value
    }
    return entry


def _access(entry: Mapping[str, Any], source: str) -> Access:
    auth = entry.get("auth") or {}
    if not isinstance(auth, dict):
        raise ValueError(f"{source}: auth must be a table")
    options = {str(key).replace("-", "_"): str(value) for key, value in auth.items()}
    kind = str(entry.get("auth_type", "password"))
    endpoint = options.pop("endpoint", "") if kind in ("none", "http_basic") else ""
    verify = entry.get("verify", not _is_true(entry.get("insecure", False)))
    try:
        return Access(
            url=str(entry.get("baremetal_endpoint_override", "")) or endpoint,
            auth_type=kind,
            auth=options,
            region=str(entry.get("region_name", "")),
            interface=str(entry.get("interface", "public")),
            ca_file=str(entry.get("cacert", "")),
            cert_file=str(entry.get("cert", "")),
            key_file=str(entry.get("key", "")),
            insecure=not _is_true(verify),
        )
    except ValueError as problem:
        raise ValueError(f"{source}: {problem}") from None


def _is_true(value: Any) -> bool:
    return str(value).lower() not in ("false", "0", "no", "off", "")
