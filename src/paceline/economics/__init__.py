"""What speculation costs and gains: acceptance, cost, statistics."""
