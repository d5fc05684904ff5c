"""`python -m dtopt_cli` is `dtopt`."""

from dtopt_cli.app import main

main()
