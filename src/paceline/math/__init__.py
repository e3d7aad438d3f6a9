"""The mathematics: pure functions of tensors; no model, no clock, no global state."""
