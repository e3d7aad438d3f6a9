"""Any causal model of transformers, run by its own modules."""
