"""Removal of passwords from values that are logged or shown."""

import re
from typing import Any
from urllib.parse import unquote

_STARS = "****"
# From the end of the user name to the last @, with or without a scheme: an @ in the password is often
# not escaped.
_BEFORE_AN_AT = re.compile(r"^((?:.*?://|(?!.*://))[^:]*?:).+@", re.DOTALL)
_NO_PORT = re.compile(r"(://[^:/?@\[]*:)(?!\d*(?:[/?]|$))[^/?]+")  # without a host
_PARAMETER = re.compile(r"([^?&=\s]+)\s*=\s*(?=[^&\s])")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"<>]+")  # within a text
_SECRET_NAME = re.compile(r"pass(?!file)|pwd|secret|token", re.IGNORECASE)


def masked(value: Any) -> Any:
    """Return the value of a setting, or a URL, with passwords replaced by stars; when in doubt, replace."""
    if isinstance(value, str):
        return _without_secret_parameters(_without_password(value))
    if isinstance(value, dict):
        return {key: masked(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(masked(item) for item in value)
    return value


def masked_text(text: str) -> str:
    """Return a text with stars for the passwords of URLs in it."""
    return _URL.sub(lambda url: masked(url[0]), text) if "://" in text else text


def _without_password(url: str) -> str:
    without, found = _BEFORE_AN_AT.subn(rf"\1{_STARS}@", url)
    return without if found else _NO_PORT.sub(rf"\1{_STARS}", url)


def _without_secret_parameters(url: str) -> str:
    """Replace the values of PASSWORD=, sslpassword=, ... up to the next &."""
    told, at = "", 0
    for match in _PARAMETER.finditer(url):
        if match.start() >= at and _SECRET_NAME.search(unquote(match[1])):
            told += url[at : match.end()] + _STARS
            end = url.find("&", match.end())
            at = len(url) if end < 0 else end
    return told + url[at:]
