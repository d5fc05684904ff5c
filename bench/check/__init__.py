"""Check whether a run, or this machine now, is quiet enough to trust its numbers."""
