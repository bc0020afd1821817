"""The statement gate, which decides whether a statement may run and determines what it reads."""
