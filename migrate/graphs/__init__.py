"""Read the optimizers from the graph of a TensorFlow 1 program, saved next to a Saver checkpoint or in a SavedModel.

`saver` reads the graph, `nodes` and `patterns` find ops and formulas in it. `identify` finds the rule of `optim` that
plain ops compute. Each kind of optimizer has a file: `tf_train`, `plain_ops`, `optimizer_v2`, `native_keras` (Keras 2),
`keras1`. `migrate.readers.tf_object` reads the object graphs of TensorFlow 2.
"""
