"""The TLS certificate of the HTTP servers, reloaded without a restart when it is renewed."""

import asyncio
import logging
import os
import ssl
from dataclasses import dataclass

log = logging.getLogger(__name__)

RENEWAL_SECONDS = 5.0  # between two checks of the files


@dataclass(frozen=True)
class TlsFiles:
    """The paths of a server's TLS certificate and private key."""

    certificate: str
    key: str

    async def renew(self, context: ssl.SSLContext) -> None:
        """Reload the TLS certificate and key whenever a file changes; only new connections use them."""
        loaded = self._stamp()
        while True:
            await asyncio.sleep(RENEWAL_SECONDS)
            if (stamp := self._stamp()) == loaded:
                continue
            loaded = stamp
            try:
                # Check the files in a new context: if they do not match, loading breaks the context in use.
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.certificate, self.key)
                context.load_cert_chain(self.certificate, self.key)
                log.warning("the certificate %s was loaded again", self.certificate)
            except OSError as problem:  # including SSLError
                log.error("the certificate stays as it was: %s: %s", self.certificate, problem)

    def _stamp(self) -> tuple[int, ...]:
        try:
            found = [os.stat(path) for path in (self.certificate, self.key)]
        except OSError:
            return ()
        return tuple(number for file in found for number in (file.st_mtime_ns, file.st_ino, file.st_size))
