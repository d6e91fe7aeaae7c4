"""Compares routing keys with the patterns of AMQP topic exchanges."""


def matches(pattern: str, key: str) -> bool:
    """Return whether a routing key matches an AMQP topic pattern: `*` is exactly one word, `#` any number."""
    if "*" not in pattern and "#" not in pattern:  # the most common case
        return pattern == key
    return _segments_match(pattern.split(".") if pattern else [], key.split(".") if key else [])


def _segments_match(pattern: list[str], segments: list[str]) -> bool:
    if not pattern:
        return not segments
    if pattern[0] == "#":
        return any(_segments_match(pattern[1:], segments[skip:]) for skip in range(len(segments) + 1))
    return bool(segments) and pattern[0] in ("*", segments[0]) and _segments_match(pattern[1:], segments[1:])
