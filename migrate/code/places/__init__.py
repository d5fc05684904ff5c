"""The kinds of places in old programs, one file each. Each looks at a node and reports the result."""
