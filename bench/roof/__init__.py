"""How fast this machine moves memory in place."""
