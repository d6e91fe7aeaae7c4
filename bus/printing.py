"""Escaping of control characters in texts from outside."""

import re

# Control characters, and characters that are invisible or change the writing direction.
OBEYED = re.compile(
    "[\\x00-\\x1f\\x7f-\\x9f\\u061c\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u2069\\ufeff\\ud800-\\udfff]"
)


def printable(text: str, *, lines: bool = False) -> str:
    """Return the text with escaped control characters; `lines` keeps line breaks and tabs."""
    return OBEYED.sub(lambda found: found[0] if lines and found[0] in "\n\t" else _escaped(found), text)


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()
