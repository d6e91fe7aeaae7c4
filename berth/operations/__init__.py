"""Operations on a berth, as functions that take a bus; the command line and the control room share them."""
