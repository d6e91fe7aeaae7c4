"""The options by which commands select an Ironic."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from berth.kit.options import option
from berth.kit.running import effective
from berth.kit.terminal import Cli
from berth.settings import BadSetting, Settings
from bus.errors import OperationRefused

if TYPE_CHECKING:
    from ironic_sync.api import IronicApi
    from ironic_sync.openstack import Access

HERE = "http://127.0.0.1:6385"


@dataclass(frozen=True)
class AnyIronic:
    """Options that select the Ironic of a command, and whether the command prints JSON."""

    as_json: bool = option(False, "Whole, as JSON lines.", "--json")
    url: str = option(
        "", "Another Ironic than that of the settings; http://user:password@... if it asks.", metavar="URL"
    )

    @cached_property
    def cli(self) -> Cli:
        return Cli(effective().settings, self.as_json)

    @asynccontextmanager
    async def api(self) -> AsyncIterator["IronicApi"]:
        """Yield a client of the selected Ironic's API; a refusal of Ironic raises OperationRefused."""
        from ironic_sync.api import IronicApi, IronicRefused

        try:
            async with IronicApi(access_of(self.cli.settings, self.url)) as api:
                yield api
        except IronicRefused as refused:
            raise OperationRefused(str(refused)) from None


def access_of(settings: Settings, url: str) -> "Access":
    """Return the URL and credentials of an Ironic's API, from `url` or, if it is empty, the settings."""
    from berth.ironic import access
    from ironic_sync.openstack import Access

    if not url:
        return access(settings) if settings.ironic.is_read else Access(url=HERE)
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadSetting("--url takes a URL of Ironic's API, such as http://127.0.0.1:6385")
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    return Access(
        url=f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}",
        auth_type="http_basic" if user else "none",
        auth={"username": user, "password": password} if user else {},
    )
