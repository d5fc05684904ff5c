"""dtopt's own update kernel for CPU devices: an optional accelerator.

`trace` makes a graph of a rule, and `generate` makes C++ of the graph. `compiling` and `build` make libraries of that
and of the ops in `ops.cc`, and `library` loads them. Without them every step uses TensorFlow's kernels.
"""
