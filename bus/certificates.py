"""Explanations of failed TLS connections to servers."""

import ssl


def distrusted(problem: BaseException) -> str:
    """Return why the server's certificate was rejected, or empty if the connection failed for another
    reason.
    """
    found: BaseException | None = problem
    seen = set[int]()  # the cause of a cause may be the problem again
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        if isinstance(found, ssl.SSLCertVerificationError):
            return f"its certificate is not believed: {found.verify_message.rstrip('.')}"
        if isinstance(found, ssl.SSLError) and found.reason == "WRONG_VERSION_NUMBER":
            return "it does not speak TLS there"
        found = getattr(found, "orig", None) or found.__cause__ or found.__context__
    return ""
