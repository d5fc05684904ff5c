"""Benchmarks of optimizer steps: all frameworks get the same shapes and numbers, timed in the same rounds."""
