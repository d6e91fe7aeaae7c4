"""Makes texts safe for logs: hides passwords, escapes control characters; explains failed TLS connections."""

import re
import ssl
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import unquote, urlsplit

from bus.broker_urls import first_url

_STARS = "****"
# A password lasts from the user name to the last @ of the URL: an @ in a password is often not escaped.
_BEFORE_AN_AT = re.compile(r"^((?:.*?://|(?!.*://))[^:]*?:).+@", re.DOTALL)
_NO_PORT = re.compile(r"(://[^:/?@\[]*:)(?!\d*(?:[/?]|$))[^/?]+")  # a password in a URL without a host
_PARAMETER = re.compile(r"([^?&=\s]+)\s*=\s*(?=[^&\s])")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"<>]+")  # a URL within a text
_SECRET_NAME = re.compile(r"pass(?!file)|pwd|secret|token", re.IGNORECASE)


def masked(value: Any) -> Any:
    """Return a setting with stars in place of secrets: passwords in URLs, and the values of URL parameters,
    table entries and command options with a name such as `password` or `token`.
    """
    if isinstance(value, str):
        return _without_secret_parameters(_without_password(value))
    if isinstance(value, dict):
        return {key: _STARS if _is_secret(key, item) else masked(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(
            _STARS if _is_secret(name, item) else masked(item) for name, item in _after_options(value)
        )
    return value


def secrets_in(value: Any) -> Iterator[str]:
    """Yield the secrets in a setting, as they are written: the texts that `masked` replaces by stars."""
    if isinstance(value, str):
        with suppress(ValueError):
            yield from filter(None, (urlsplit(first_url(value)).password,) if "://" in value else ())
        for match in _PARAMETER.finditer(value):
            if _SECRET_NAME.search(unquote(match[1])):
                yield value[match.end() :].partition("&")[0]
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from (item,) if _is_secret(key, item) else secrets_in(item)
    elif isinstance(value, list | tuple):
        for name, item in _after_options(value):
            yield from (item,) if _is_secret(name, item) else secrets_in(item)


def _after_options(items: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Yield each argument of a command with the option before it, such as `--password`, or with ""."""
    for before, item in zip(("", *items), items, strict=False):
        yield before if isinstance(before, str) and before.startswith("-") else "", item


def _is_secret(name: str, value: Any) -> bool:
    return isinstance(value, str) and _SECRET_NAME.search(name) is not None


def masked_text(text: str) -> str:
    """Return a text with stars in place of passwords in its URLs."""
    return _URL.sub(lambda url: masked(url[0]), text) if "://" in text else text


def _without_password(url: str) -> str:
    without, found = _BEFORE_AN_AT.subn(rf"\1{_STARS}@", url)
    return without if found else _NO_PORT.sub(rf"\1{_STARS}", url)


def _without_secret_parameters(url: str) -> str:
    shown, at = "", 0
    for match in _PARAMETER.finditer(url):
        if match.start() >= at and _SECRET_NAME.search(unquote(match[1])):
            shown += url[at : match.end()] + _STARS
            end = url.find("&", match.end())
            at = len(url) if end < 0 else end
    return shown + url[at:]


# Control characters, and characters that are invisible or change the writing direction.
OBEYED = re.compile(
    "[\\x00-\\x1f\\x7f-\\x9f\\u061c\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u2069\\ufeff\\ud800-\\udfff]"
)


def printable(text: str, *, lines: bool = False) -> str:
    """Return the text with control characters escaped, except line breaks and tabs if `lines` is set."""
    return OBEYED.sub(lambda found: found[0] if lines and found[0] in "\n\t" else _escaped(found), text)


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


def distrusted(problem: BaseException) -> str:
    """Return why TLS with a server failed (certificate not trusted, no TLS); empty for all other errors."""
    found: BaseException | None = problem
    seen = set[int]()  # chains of causes can contain a cycle
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        if isinstance(found, ssl.SSLCertVerificationError):
            return f"its certificate is not believed: {found.verify_message.rstrip('.')}"
        if isinstance(found, ssl.SSLError) and found.reason == "WRONG_VERSION_NUMBER":
            return "it does not speak TLS there"
        found = getattr(found, "orig", None) or found.__cause__ or found.__context__
    return ""
