"""The statement gate: whether a statement may run, and what it reads."""
