"""The cause of a refused certificate is found below a library's exception."""

import ssl

import pytest

from bus.certificates import distrusted


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
def test_it_is_found_and_a_circle_has_an_end(problem: BaseException, says: str) -> None:
    assert distrusted(problem) == says
