"""One file per target, and what they share; each writes whole, next to the destination, and then renames."""
