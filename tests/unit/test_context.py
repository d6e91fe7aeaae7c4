"""Correlation and trace of a message are derived from its cause."""

import random

import msgspec
import pytest

from bus.clock import Clock
from bus.codec import decode_frame, encode_frame
from bus.context import envelope_of
from bus.messages import BuildDeleteRequested
from bus.protocol import Envelope

CLOCK = Clock(now=lambda: 1_700_000_000.0, chance=random.Random(1))
TRACE = "0af7651916cd43dd8448eb211c80319c"
MESSAGE = BuildDeleteRequested(build="00000000-0000-0000-0000-000000000001", cell="c1")


def a_cause(**said: str) -> Envelope:
    return msgspec.structs.replace(Envelope(id="cause", type="T", key="k", body=msgspec.Raw(b"{}")), **said)


@pytest.mark.parametrize(
    "said, trace, flags",
    [
        (f"00-{TRACE}-b7ad6b7169203331-00", TRACE, "00"),
        (f"cc-{TRACE}-b7ad6b7169203331-01-and-more-in-later-versions", TRACE, "01"),
        ("", None, "01"),
        ("00", None, "01"),
        (f"00-{TRACE.upper()}-b7ad6b7169203331-01", None, "01"),
        (f"00-{TRACE}-b7ad6b7169203331-0", None, "01"),
        (f"00-{TRACE}-b7ad6b7169203331-011", None, "01"),
        (f"-{'z' * 32}--{'f' * 220}", None, "01"),
    ],
)
def test_a_trace_goes_on_if_it_is_one_and_else_a_new_one_begins(
    said: str, trace: str | None, flags: str
) -> None:
    _, found, span, found_flags = envelope_of(MESSAGE, CLOCK, a_cause(traceparent=said)).traceparent.split(
        "-"
    )
    assert (found == trace) == (trace is not None)
    assert (len(found), len(span), found_flags) == (32, 16, flags)
    assert span not in said


def test_whatever_a_stranger_says_of_the_story_its_consequences_can_be_read() -> None:
    long = 255 * "x"
    causes = [
        a_cause(traceparent=f"-{'z' * 32}--{'f' * 220}"),
        a_cause(correlation=long),
        a_cause(id=long),
        a_cause(traceparent=long),
    ]
    sent = [envelope_of(MESSAGE, CLOCK, cause) for cause in causes]
    assert decode_frame(encode_frame(sent)) == sent
