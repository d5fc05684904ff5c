"""Time and what it can be trusted for: the clock, rounds, processes, statistics, and the machine."""
