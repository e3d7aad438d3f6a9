"""The vocabulary that all parts share: values, contracts, events."""
