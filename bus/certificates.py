"""Why the certificate of a server that we called by TLS was not believed, in words."""

import ssl


def distrusted(problem: BaseException) -> str:
    """Empty where the connection failed for another reason."""
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
