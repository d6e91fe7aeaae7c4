"""Operations as functions of a bus, which the command line and the control room share."""
