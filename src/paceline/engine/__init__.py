"""The loop and what it keeps of each sequence."""
