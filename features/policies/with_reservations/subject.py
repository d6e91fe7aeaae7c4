"""The reservations that a trial supposes, as JSON in the message of the trial."""

from bus import parts
from bus.messages import BuildRequested
from bus.vocabulary import Id, ShortList, Value

SUBJECT = "reservations"


class ReservationsSupposed(Value, frozen=True, kw_only=True):
    without: ShortList[Id] = ()  # reservations whose undrawn capacity counts as free
    reserves: ShortList[BuildRequested] = ()  # additional reservations, as requests that get hosts first


encode = parts.encoder().encode


def decode(text: str) -> ReservationsSupposed:
    return parts.decoder(ReservationsSupposed).decode(text)
