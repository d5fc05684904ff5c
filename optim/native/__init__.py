"""dtopt's own update kernel: `update.cc` and its headers, compiled on demand against the TensorFlow installed.

An accelerator and never a need: without it every step runs on TensorFlow's kernels.
"""
