"""Fixtures of a conductor's builds."""

from tests.support.cell_builds import books as books
from tests.support.cell_builds import builds as builds
from tests.support.cell_builds import store as store
from tests.support.cell_builds import time as time
