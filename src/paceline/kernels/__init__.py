"""Products and row operations, with weights in the order that a kernel reads."""
