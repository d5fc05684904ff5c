"""Whether a run, or this machine now, is quiet enough for its numbers to be believed."""
