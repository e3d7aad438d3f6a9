"""The command line: `entry.main` is where it begins; each command group is one file.

Nothing here imports torch or transformers before a command needs a model, so that `--help` and the
commands that only list or calculate answer at once.
"""
