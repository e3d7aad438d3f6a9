"""Where drafters look tokens up: indexes of texts, counts of what followed, corpora on disk."""
