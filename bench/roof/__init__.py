"""Measure how fast this machine moves memory in place."""
