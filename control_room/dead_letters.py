"""Dead letters prepared for a page: their text is escaped, and each cut is marked."""

import re
from dataclasses import dataclass, replace

import msgspec

from bus.errors import NOT_JSON
from bus.printing import printable
from bus.protocol import DeadLetter

MOST_BODY = 200_000  # characters that are shown
_SHORT = 300
_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_WITH_PAGE = ("build", "request", "move")  # fields whose ids have a page


@dataclass(frozen=True, kw_only=True)
class LetterDetails:
    letter: DeadLetter
    reason: str
    traceback: str
    body: str
    cut: bool
    about: tuple[tuple[str, str], ...]  # field and id of what has a page


def letter_row(letter: DeadLetter) -> DeadLetter:
    """Return the letter with escaped texts except its id, a short reason, and 0 for invalid times."""
    reason = " ".join(letter.reason.split())
    return replace(
        letter,
        queue=printable(letter.queue),
        key=printable(letter.key),
        type=printable(letter.type),
        reason=printable(reason[:_SHORT]) + (" …" if len(reason) > _SHORT else ""),
        cell="unknown" if letter.cell == "?" else printable(letter.cell),
        died=_moment(letter.died),
        first_died=_moment(letter.first_died),
        correlation=printable(letter.correlation),
    )


def letter_details(letter: DeadLetter) -> LetterDetails:
    body = _indented(letter.body)
    return LetterDetails(
        letter=letter_row(letter),
        reason=printable(letter.reason, lines=True),
        traceback=printable(letter.traceback, lines=True),
        body=printable(body[:MOST_BODY], lines=True),
        cut=len(body) > MOST_BODY,
        about=_about(letter.body),
    )


def _indented(body: bytes) -> str:
    try:
        return msgspec.json.format(body, indent=2).decode(errors="replace")
    except NOT_JSON:
        return body.decode(errors="replace")


def _about(body: bytes) -> tuple[tuple[str, str], ...]:
    try:
        fields = msgspec.json.decode(body)
    except NOT_JSON:
        return ()
    if not isinstance(fields, dict):
        return ()
    found = [(name, fields.get(name)) for name in _WITH_PAGE]
    return tuple((name, id_) for name, id_ in found if isinstance(id_, str) and _ID.fullmatch(id_))


def _moment(seconds: float) -> float:
    """Return the time, or 0 if it is not valid: it was sent by others."""
    return seconds if 0 < seconds < 2.0**32 else 0.0
