"""The command line: `entry.main` is the entry point; each command group is one file.

Nothing here imports torch or transformers before a command needs a model, so that `--help` and the
commands that only list or calculate respond immediately.
"""
