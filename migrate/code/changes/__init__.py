"""Find what a program does to an optimizer besides the call that creates it: the call alone does not determine the
state."""
