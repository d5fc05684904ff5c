"""Several algorithms in one optimizer: what `optim.Groups` is made of."""
