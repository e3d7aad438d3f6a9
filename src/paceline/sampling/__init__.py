"""From logits to a distribution, and the randomness that draws from it."""
