"""Benchmarks of optimizer steps: the same shapes and numbers given to every framework, timed side by side."""
