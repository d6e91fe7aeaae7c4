"""Fixtures of a conductor's builds."""

from tests.contract.test_builds import books as books
from tests.contract.test_builds import builds as builds
from tests.contract.test_builds import store as store
from tests.contract.test_builds import time as time
