"""Networks of draft heads that have layers of their own, over the same blocks as the targets."""
