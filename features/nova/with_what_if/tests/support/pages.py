"""The pages about Nova, for tests of all pages of the control room."""

from bus.worker import Worker
from features.nova.with_what_if.tests.support.shadow_reports import SHADOWED, a_shadow_worker

PAGES = {"nova": "/nova?wait=1", "nova-instance": "/nova/{shadowed}"}
VALUES = {"shadowed": SHADOWED}


def workers() -> list[Worker]:
    """Return the workers that answer the queries of the pages."""
    return [a_shadow_worker()]
