"""Reads the parameters of URLs that are not of the Placement API."""

from placement_worker.http.extension import ApiCall, errors


def parameters(call: ApiCall, *known: str) -> dict[str, str]:
    for name, _ in call.pairs:
        if name not in known:
            raise errors.bad_request(f"{name[:40]!r} is not a parameter here; there are: {', '.join(known)}")
    return dict(call.pairs)
