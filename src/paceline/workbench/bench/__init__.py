"""The benchmark: what each method gives on your prompts and machine, with its uncertainty."""
