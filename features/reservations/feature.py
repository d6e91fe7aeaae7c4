"""Declares the feature reservations."""

from bus.feature import Feature
from features.reservations.settings import ReservationSettings

FEATURE = Feature(
    name="reservations", says="holds capacity for a project or a purpose", settings=ReservationSettings
)
