"""dtopt's own update kernel, for CPU devices: an accelerator and never a need.

`trace` makes a graph of a rule, `generate` C++ of the graph, `compiling` and `build` make libraries of that and of the
ops in `ops.cc`, `library` loads them; without them every step runs on TensorFlow's kernels.
"""
