"""One call of `apply_gradients`: gradients are checked, gathered, and made a step on an executor."""
