"""All that tests and benchmarks of features import of a conductor, in addition to `cell_conductor.extension`.

A builder of tests/support is shorter than these, wherever there is one: `tests.support.conductor_builders`.
"""

from cell_conductor.builds import Builds
from cell_conductor.worker import cell_conductor

__all__ = [
    "Builds",  # the builds of a cell, over its database
    "cell_conductor",  # the worker's table of rows
]
