"""`python -m paceline.cli`, for use when the `paceline` script is not on the path."""

from paceline.cli.entry import main

main()
