"""Compare two results: what became faster, slower, or is unclear."""
