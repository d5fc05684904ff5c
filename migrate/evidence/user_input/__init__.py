"""What the user says of a source: each value is used, confirms what is so, or is refused; none is ignored."""
