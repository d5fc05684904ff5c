"""What a program does to an optimizer besides the call that makes it, so that the call does not tell what was saved."""
