"""Ids as people paste them."""

import uuid


def uuid_in(text: str) -> str:
    """As the bus has it; empty: it is none."""
    try:
        return str(uuid.UUID(text.strip()))
    except ValueError:
        return ""
