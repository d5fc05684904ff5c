"""Read, inspect, interpret, write: what the public functions do."""
