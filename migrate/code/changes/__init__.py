"""Find what a program does to an optimizer after the call that creates it: the call alone does not determine the
state."""
