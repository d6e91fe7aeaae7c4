"""What agents decide: fates of builds, provider trees, who holds what. No I/O, no clock, no chance."""
