"""Chooses the control room's address before its process starts."""

import socket

from berth.settings import Settings

PORT = 8780


def with_room_address(settings: Settings) -> Settings:
    """Return settings with an address for the control room. If the settings name no port, or port 0, a usable
    port is chosen and reserved for this process.
    """
    place = f"127.0.0.1:{PORT}" if settings.control_room.http == "auto" else settings.control_room.http
    host, _, port = place.rpartition(":")
    if settings.control_room.http == "auto" and not _reserve(host, PORT):
        port = "0"
    if port == "0":
        chosen = _free_port(host)
        while not _reserve(host, chosen):
            chosen = _free_port(host)
        place = f"{host}:{chosen}"
    return settings.having(control_room_http=place)


def room_url(settings: Settings) -> str:
    """Return the URL of the control room, or an empty text if the settings disable it."""
    scheme = "https" if settings.process.http_certificate else "http"
    return f"{scheme}://{settings.control_room.http}/" if settings.control_room.listens else ""


def _reserve(host: str, port: int) -> bool:
    """Reserve the given TCP port, if it is free, until this process ends; return whether it was free.

    The control room binds the TCP port later, perhaps in another process. This process binds the UDP port of
    the same number, so of several berths that start together only one can reserve a port.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    held = socket.socket(family, socket.SOCK_DGRAM)
    try:
        held.bind((host.strip("[]"), port))
        socket.create_server((host.strip("[]"), port), family=family).close()
    except OSError:
        held.close()
        return False
    held.detach()
    return True


def _free_port(host: str) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host.strip("[]"), 0), family=family) as found:
        return int(found.getsockname()[1])
