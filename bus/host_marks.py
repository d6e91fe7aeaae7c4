"""Traits of a root by which operators, and agents, keep new instances away from it."""

DISABLED = "COMPUTE_STATUS_DISABLED"  # how Nova marks a disabled host in placement
FORCED_DOWN = "CUSTOM_BERTH_FORCED_DOWN"  # an operator says that it is down, whatever is heard of it
HELD = "CUSTOM_BERTH_HELD_"  # and a word: one cause of several why it is disabled, to be taken away by itself
UNNAMED = "operator"  # the cause of an operator that named no cause, beside other causes
DRAIN = f"{HELD}DRAIN"  # the cause of a host that is being emptied
