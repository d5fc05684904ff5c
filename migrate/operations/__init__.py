"""The step counter of a source."""
