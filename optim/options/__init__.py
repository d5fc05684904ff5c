"""The options that every optimizer takes, one file each: what it says, its check, and the state that it needs."""
