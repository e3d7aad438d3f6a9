"""`python -m paceline.cli`, for where the `paceline` script is not on the path."""

from paceline.cli.entry import main

main()
