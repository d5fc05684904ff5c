"""Whether two optimizers follow one rule, and what a rule becomes in Keras 3 and tf_keras."""
