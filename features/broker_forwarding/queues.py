"""Forwards messages from one RabbitMQ to another while a berth moves between them."""

import asyncio
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from berth.settings import BadSetting, Settings
from bus.broker_urls import addresses, single_urls, vhost_of
from bus.clock import monotonic
from features.broker_forwarding.definitions import NotDefinitions, durable_queues, importable
from features.broker_forwarding.forwarding import Forwarder

_CHECK_SECONDS = 0.2


def check_urls(old: str, new: str) -> None:
    """Raise BadSetting if a URL is malformed, or if both URLs lead to the same virtual host of the same
    broker.
    """
    for option, url in (("--from", old), ("--to", new)):
        try:
            single_urls(url)
        except ValueError as problem:
            raise BadSetting(f"{option}: the URL {problem}") from None
    common = set(addresses(old)) & set(addresses(new))
    if common and vhost_of(old) == vhost_of(new):
        host, port = min(common)
        raise BadSetting(f"--from and --to lead to the same broker: {host}:{port}, {vhost_of(old)!r}")


def chosen_queues(
    settings: Settings, old: str, definitions: str, queues: Sequence[str], excluding: Collection[str]
) -> list[str]:
    """Return the queues to forward: `queues` or, if empty, the durable queues in the file of exported
    `definitions` for the virtual host of the URL `old`; in both cases without the queues in `excluding`.
    Raise BadSetting if no queue is left, or if a queue in `excluding` is unknown.
    """
    found = list(dict.fromkeys(queues))
    if not found:
        if not definitions:
            raise BadSetting("name the queues: --definitions FILE, or --queue NAME for each")
        with _reading(definitions):
            found = durable_queues(Path(definitions).read_bytes(), vhost_of(old), settings.bus.exchange)
    if unknown := [name for name in excluding if name not in found]:
        raise BadSetting(f"--except: there is no queue {unknown[0]} to leave out")
    left = [name for name in found if name not in excluding]
    if not left:
        raise BadSetting("--except leaves out all queues")
    return left


def write_importable(exported: str, written: str) -> int:
    """Write the definitions in the file `exported` to the file `written` (if new, with equal mode), in a
    form that another broker can import. Return the number of bindings that were left out. Raise BadSetting if
    a file is unusable.
    """
    with _reading(exported):
        content, left_out = importable(Path(exported).read_bytes())
    target = Path(written)
    if target.exists() and target.samefile(exported):
        raise BadSetting(f"{written}: name another file than the exported one")
    target.touch(Path(exported).stat().st_mode & 0o777)  # the file has hashes of passwords
    target.write_bytes(content)
    return left_out


@contextmanager
def _reading(path: str) -> Iterator[None]:
    """In the `with` block, convert errors of reading or parsing the file of definitions to BadSetting."""
    try:
        yield
    except NotDefinitions as problem:
        raise BadSetting(f"{path} {problem}") from None
    except OSError as problem:
        raise BadSetting(f"{path}: {problem.strerror}") from None


async def stop_when_empty(forwarder: Forwarder, seconds: float, stopping: asyncio.Event) -> None:
    """Set `stopping`, which ends forwarding, when all forwarded queues have been empty for `seconds`."""
    while not stopping.is_set():
        since = forwarder.idle_since
        if since is not None and monotonic() - since >= seconds:
            stopping.set()
        await asyncio.sleep(_CHECK_SECONDS)
