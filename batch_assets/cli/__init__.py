"""The command line: reads arguments, calls an operation, prints. Holds no logic of its own."""
