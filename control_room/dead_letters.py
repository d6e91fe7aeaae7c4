"""Dead letters prepared for a page: their text is escaped, and each cut is marked."""

import re
from dataclasses import dataclass

import msgspec

from bus.errors import NOT_JSON
from bus.printing import printable
from bus.protocol import DeadLetter

MOST_BODY = 200_000  # characters that are shown
_SHORT = 300
_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_BUILDS = ("build", "request", "move")


@dataclass(frozen=True, kw_only=True)
class LetterRow:
    id: str
    name: str  # the id as it may be shown
    queue: str
    key: str
    type: str
    reason: str
    cell: str  # for people; empty: no cell
    died: float  # 0: unknown
    first_died: float
    attempt: int
    correlation: str
    size: int


@dataclass(frozen=True, kw_only=True)
class LetterDetails:
    letter: LetterRow
    reason: str
    traceback: str
    body: str
    cut: bool
    about: tuple[tuple[str, str], ...]  # what it is about, that has a page: the field, its id


def letter_row(letter: DeadLetter) -> LetterRow:
    reason = " ".join(letter.reason.split())
    return LetterRow(
        id=letter.id,
        name=printable(letter.id),
        queue=printable(letter.queue),
        key=printable(letter.key),
        type=printable(letter.type),
        reason=printable(reason[:_SHORT]) + (" …" if len(reason) > _SHORT else ""),
        cell="nobody knows which" if letter.cell == "?" else printable(letter.cell),
        died=_moment(letter.died),
        first_died=_moment(letter.first_died),
        attempt=letter.attempt,
        correlation=printable(letter.correlation),
        size=len(letter.body),
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
        said = msgspec.json.decode(body)
    except NOT_JSON:
        return ()
    if not isinstance(said, dict):
        return ()
    found = [(name, said.get(name)) for name in _BUILDS]
    return tuple((name, id_) for name, id_ in found if isinstance(id_, str) and _ID.fullmatch(id_))


def _moment(seconds: float) -> float:
    """Return the time, or 0 if it is not valid: it was sent by others."""
    return seconds if 0 < seconds < 2.0**32 else 0.0
