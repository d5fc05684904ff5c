"""The command line `dtopt`: parse, call one library function, print. Nothing imports this package."""
