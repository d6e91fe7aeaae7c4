"""Ids as people paste them."""

import uuid


def uuid_in(text: str) -> str:
    """Return the id in the form of the bus, or an empty text if it is no id."""
    try:
        return str(uuid.UUID(text.strip()))
    except ValueError:
        return ""
