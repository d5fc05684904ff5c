"""One call of `apply_gradients`: check gradients, gather them, and run a step on an executor."""
