"""Measure time and judge its reliability: the clock, rounds, processes, statistics, and the machine."""
