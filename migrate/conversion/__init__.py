"""Read, inspect, convert, write: the public functions."""
