"""`compile` and `fit` of Keras 3 (TensorFlow backend) and tf_keras with the optimizers of `optim`.

`making` finds Keras and makes the class, `adapter` is what that class does, `saved` how Keras saves it.
"""
