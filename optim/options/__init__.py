"""The options that every optimizer takes, one file each: its value, its check, and the state that it needs."""
