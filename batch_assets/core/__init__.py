"""Values and pure decisions: no I/O, no clock, no randomness that is not passed in."""
