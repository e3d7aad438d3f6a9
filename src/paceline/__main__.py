"""`python -m paceline`, for use when the `paceline` script is not on the path."""

from paceline.cli.entry import main

main()
