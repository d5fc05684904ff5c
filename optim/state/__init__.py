"""What an optimizer keeps: the variables that it knows, their slots, and its counters."""
