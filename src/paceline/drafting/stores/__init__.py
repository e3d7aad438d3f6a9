"""Where drafters look tokens up: text indexes, counts of what followed, corpora on disk."""
