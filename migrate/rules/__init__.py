"""Compare the rules of two optimizers, and find what a rule becomes in Keras 3 and tf_keras."""
