"""Drafters trained on the target's own text: capture its hidden states, train, measure, write."""
