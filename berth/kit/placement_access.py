"""Reads the options with which a command reaches a Placement API."""

import os
import ssl
from pathlib import Path

from berth.settings import BadSetting
from bus.masking import masked


def placement_url(flag: str, given: str) -> str:
    """Return the URL of a Placement API as given; raise BadSetting if it is not http or https."""
    if not given.startswith(("http://", "https://")):
        raise BadSetting(f"{flag} takes an address as http://127.0.0.1:8778, not {masked(given)!r}")
    return given


def check_certificates(file: str) -> None:
    """Raise BadSetting if the file has no certificates that TLS can use. "" selects the system's
    certificates.
    """
    try:
        ssl.create_default_context(cafile=file or None)
    except ssl.SSLError:
        raise BadSetting(f"--cacert {file}: there is no certificate in it") from None
    except OSError as problem:
        raise BadSetting(f"--cacert {file}: cannot be read: {problem.strerror}") from None


def token_of(file: Path | None, variable: str) -> str:
    """Return the token in the file, or else of the environment variable ("admin" if unset)."""
    if file is None:
        return os.environ.get(variable, "admin")
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError as problem:
        raise BadSetting(f"{file}: {problem.strerror}") from None
    except UnicodeDecodeError:
        raise BadSetting(f"{file}: holds no token, it is not text") from None
