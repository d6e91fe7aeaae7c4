"""UUIDs that are easy to distinguish."""


def uid(number: int, kind: str = "c") -> str:
    return f"{kind * 8}-0000-0000-0000-{number:012d}"
