"""TLS to PostgreSQL as libpq's own words in a URL ask for it, so that one URL serves `pg_dump` and us."""

import ssl
from typing import Any

from sqlalchemy.engine import URL

FILES = ("sslrootcert", "sslcert", "sslkey")
MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_VERIFIES = ("verify-ca", "verify-full")


def secured(address: URL) -> tuple[URL, dict[str, Any]]:
    """Return the URL without TLS parameters, and the driver's options for them.

    Without files the driver uses libpq's defaults: PGSSLROOTCERT, ~/.postgresql/root.crt.
    """
    words = {name: str(address.query[name]) for name in ("ssl", "sslmode", *FILES) if name in address.query}
    if not words:
        return address, {}
    plain = address.difference_update_query(list(words))
    mode = words.get("sslmode") or words.get("ssl", "")
    if mode not in MODES:
        raise ValueError(f"sslmode={mode}: there are {', '.join(MODES)}")
    if not any(name in words for name in FILES):
        return plain, {"ssl": mode}
    if mode not in ("require", *_VERIFIES):
        raise ValueError(f"sslmode={mode} needs no certificates: say require, verify-ca or verify-full")
    return plain, {"ssl": _context(mode, *(words.get(name) for name in FILES))}


def _context(mode: str, root: str | None, certificate: str | None, key: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=root)
    context.check_hostname = mode == "verify-full"
    if mode == "require" and root is None:
        context.verify_mode = ssl.CERT_NONE
    if certificate is not None:
        context.load_cert_chain(certificate, key)
    return context
