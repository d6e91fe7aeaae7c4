"""The act on instances that were created without berth."""

from bus import topics
from bus.acts import Act, sent

ACTS = (Act("adopt", "admin", "adopt instances that were created without berth", sent(topics.BUILD_ADOPT)),)
