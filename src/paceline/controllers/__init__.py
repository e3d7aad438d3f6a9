"""Controllers: how far to draft."""
