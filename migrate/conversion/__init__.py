"""Read, inspect, convert, write: what the public functions do."""
