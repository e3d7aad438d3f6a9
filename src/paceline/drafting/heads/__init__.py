"""What draft heads share: their contract, and how chains and trees are drawn from their logits."""
