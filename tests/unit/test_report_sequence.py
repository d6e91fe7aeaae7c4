"""Later reports of an owner have higher sequences, whichever way its wall clock jumps."""

from bus.clock import Clock, ReportSequence
from bus.vocabulary import MAX_ORDINAL


class Hands:
    def __init__(self, now: float) -> None:
        self.now = now
        self.clock = Clock(now=lambda: self.now)


def test_it_follows_the_clock_and_never_goes_back() -> None:
    hands = Hands(1000.0)
    numbers = ReportSequence(hands.clock)
    told = [numbers.next()]
    for now in (1000.0, 1001.0, 5000.0, 1000.5, 1000.6):
        hands.now = now
        told.append(numbers.next())
    assert told == sorted(set(told))
    assert told[0] == 1_000_000_000


def test_it_goes_on_from_what_an_earlier_run_told() -> None:
    numbers = ReportSequence(Hands(1000.0).clock)
    numbers.follow(9_000_000_000_000)
    numbers.follow(5)
    assert [numbers.next(), numbers.next()] == [9_000_000_000_001, 9_000_000_000_002]


def test_it_stays_what_can_be_told() -> None:
    numbers = ReportSequence(Hands(1e300).clock)
    assert numbers.next() == MAX_ORDINAL
