"""One file per target, and what they share; each writes whole, beside the destination, and then renames."""
