"""Numbers in fewer bits than they are computed in: stochastic rounding to bfloat16, and 8-bit codes of blocks."""
