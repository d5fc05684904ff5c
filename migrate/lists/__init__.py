"""The order of `get_weights()` lists, of every generation."""
