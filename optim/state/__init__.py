"""The state of an optimizer: its tracked variables, their slots, and its counters."""
