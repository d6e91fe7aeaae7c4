"""Certificates of the tests' own, made by openssl."""

import subprocess
from pathlib import Path

from deploy.servers import Certificate

_CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


class Authority:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(0o755)
        self.file = directory / "ca.pem"
        self._key = directory / "ca.key"
        self._signed = 0
        _openssl(
            "req", "-x509", *_CURVE, "-days", "2", "-subj", "/CN=An authority of a test",
            "-addext", "keyUsage=critical,keyCertSign,cRLSign", "-keyout", self._key, "-out", self.file,
        )  # fmt: skip

    def certificate(self, *names: str) -> Certificate:
        self._signed += 1
        place = self._directory / f"server-{self._signed}"
        made = Certificate(place.with_suffix(".pem"), place.with_suffix(".key"))
        request, said = place.with_suffix(".csr"), place.with_suffix(".names")
        said.write_text(f"subjectAltName={','.join(f'DNS:{name}' for name in names)}\n")
        _openssl("req", "-new", *_CURVE, "-subj", "/CN=server", "-keyout", made.key, "-out", request)
        _openssl(
            "x509", "-req", "-in", request, "-CA", self.file, "-CAkey", self._key, "-CAcreateserial",
            "-days", "2", "-extfile", said, "-out", made.certificate,
        )  # fmt: skip
        return made


def _openssl(*arguments: object) -> None:
    command = ["openssl", *map(str, arguments)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
