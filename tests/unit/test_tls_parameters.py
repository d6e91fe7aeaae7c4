"""TLS parameters of database URLs, and the cause of a refused certificate."""

import ssl
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from bus.masking import distrusted
from bus.sql.postgres import secured

PLAIN = "postgresql+asyncpg://u@h/b"


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("", {}),
        ("?sslmode=verify-full", {"ssl": "verify-full"}),
        ("?ssl=require", {"ssl": "require"}),
        ("?sslmode=disable", {"ssl": "disable"}),
    ],
)
def test_without_files_the_driver_is_told_the_mode(said: str, told: dict[str, object]) -> None:
    address, security = secured(make_url(PLAIN + said))
    assert (str(address), security) == (PLAIN, told)


@pytest.mark.parametrize(
    ("mode", "verifies", "name"),
    [
        ("verify-full", ssl.CERT_REQUIRED, True),
        ("verify-ca", ssl.CERT_REQUIRED, False),
        ("require", ssl.CERT_REQUIRED, False),  # as libpq does where there is an authority
    ],
)
def test_with_an_authority_it_is_told_whom_to_believe(
    mode: str, verifies: ssl.VerifyMode, name: bool
) -> None:
    address, security = secured(make_url(f"{PLAIN}?sslmode={mode}&sslrootcert={an_authority()}&host=x"))
    context = security["ssl"]
    assert str(address) == f"{PLAIN}?host=x"
    assert (context.verify_mode, context.check_hostname) == (verifies, name)


def an_authority() -> Path:
    found = ssl.get_default_verify_paths().cafile
    if found is None:
        pytest.skip("this machine trusts no authority in one file")
    return Path(found)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("sslmode=verify_full", "sslmode=verify_full: there are disable, allow,"),
        ("sslmode=prefer&sslrootcert=/x", "sslmode=prefer needs no certificates: say require,"),
        ("sslrootcert=/x", "sslmode=: there are"),
    ],
)
def test_invalid_parameters_are_refused(said: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        secured(make_url(f"{PLAIN}?{said}"))


def not_believed() -> ssl.SSLCertVerificationError:
    problem = ssl.SSLCertVerificationError(1, "certificate verify failed")
    problem.verify_message = "certificate has expired."
    return problem


def caused_by(cause: BaseException) -> ConnectionError:
    problem = ConnectionError("reset")
    problem.__cause__ = cause
    return problem


def each_others() -> ConnectionError:
    first, second = ConnectionError("reset"), ConnectionError("cannot be made")
    first.__cause__, second.__context__ = second, first
    return first


@pytest.mark.parametrize(
    ("problem", "says"),
    [
        (ConnectionError("reset"), ""),
        (not_believed(), "its certificate is not believed: certificate has expired"),
        (caused_by(not_believed()), "its certificate is not believed: certificate has expired"),
        (caused_by(each_others()), ""),
        (each_others(), ""),
    ],
    ids=["another", "itself", "its cause", "a circle behind it", "a circle"],
)
def test_the_certificate_error_is_found_in_a_chain_of_causes(problem: BaseException, says: str) -> None:
    assert distrusted(problem) == says
