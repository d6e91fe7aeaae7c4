"""Requests that wait for capacity: where they are kept, what wakes them, and what becomes of them."""
