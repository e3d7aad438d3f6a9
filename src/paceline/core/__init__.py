"""The words that all parts speak: values, contracts, events."""
