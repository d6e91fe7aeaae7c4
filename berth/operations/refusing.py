"""Converts the errors of an operation to one type, for pages that show them."""

from collections.abc import Iterator
from contextlib import contextmanager

from berth.operations.publishing import leaves
from berth.settings import BadSetting
from bus.errors import OperationRefused
from control_room.queries import NO_ANSWER

TROUBLE = (OperationRefused, BadSetting, *NO_ANSWER)


@contextmanager
def operations_refused() -> Iterator[None]:
    """Convert errors in the `with` block (refusals, wrong options, missing answers) to OperationRefused."""
    try:
        yield
    except TROUBLE as problem:
        raise OperationRefused(str(problem)) from None
    except BaseExceptionGroup as group:
        trouble, bugs = group.split(TROUBLE)
        if trouble is None or bugs is not None:
            raise
        raise OperationRefused("; ".join(dict.fromkeys(map(str, leaves(trouble))))) from None
