"""What drafters share: draft models, trees, stores, vocabularies."""
