"""Measure the scaling of a step over mesh shapes and clients: every mesh in its own processes, one per DTensor
client."""
