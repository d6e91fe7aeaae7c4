"""The fixtures of berth's own tests, for the file `tests/conftest.py` of each feature."""

from tests.contract.conftest import *  # noqa: F403
from tests.integration.conftest import *  # noqa: F403
from tests.unit.conftest import *  # noqa: F403
