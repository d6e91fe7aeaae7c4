"""Declares the feature waiting."""

from bus.feature import Feature

FEATURE = Feature(
    name="waiting", says="lets requests without a host wait for free capacity", needs=("moves",)
)
