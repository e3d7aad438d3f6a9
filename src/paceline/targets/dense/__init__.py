"""A lean decoder for the Llama family."""
