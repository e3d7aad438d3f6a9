"""What a target keeps of a sequence between passes."""
