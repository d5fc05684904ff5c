"""Measure one optimizer step of every peer on the same shapes and numbers."""
