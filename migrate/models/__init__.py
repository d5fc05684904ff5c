"""Models as data: what a source says of its model, in Keras 2's terms, and from there to what Keras 3 or tf_keras load.

Nothing is built and no layer's code is run; layers are those of Keras itself, listed in `layers`.
"""
