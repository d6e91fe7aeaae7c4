"""UUIDs that are easy to distinguish."""


def uid(number: int, kind: str = "c") -> str:
    """Of a provider (a), consumer (c) or aggregate (e); in cells of a request (a), build (b) or host (c)."""
    return f"{kind * 8}-0000-0000-0000-{number:012d}"
