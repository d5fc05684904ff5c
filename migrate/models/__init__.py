"""Models as data: a source's model in Keras 2's terms, translated into what Keras 3 or tf_keras load.

Nothing is built and no layer's code is run. Only Keras's own layers are known, listed in `layers`.
"""
