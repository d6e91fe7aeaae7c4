"""Converts the errors of an operation to one type, for pages that show them."""

from collections.abc import Iterator
from contextlib import contextmanager

from berth.settings import BadSetting
from bus.errors import UNANSWERED, OperationRefused, Undecodable

OPERATION_ERRORS = (OperationRefused, BadSetting, *UNANSWERED, Undecodable)


def single_errors(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    """Yield the single errors in an exception group and in nested groups."""
    for problem in group.exceptions:
        if isinstance(problem, BaseExceptionGroup):
            yield from single_errors(problem)
        else:
            yield problem


@contextmanager
def operations_refused() -> Iterator[None]:
    """Convert errors in the `with` block (refusals, wrong options, missing answers) to OperationRefused."""
    try:
        yield
    except OPERATION_ERRORS as problem:
        raise OperationRefused(str(problem)) from None
    except BaseExceptionGroup as group:
        trouble, bugs = group.split(OPERATION_ERRORS)
        if trouble is None or bugs is not None:
            raise
        raise OperationRefused("; ".join(dict.fromkeys(map(str, single_errors(trouble))))) from None
