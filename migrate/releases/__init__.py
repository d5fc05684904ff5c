"""Every release that writes optimizer state, and which of them can have written a source."""
