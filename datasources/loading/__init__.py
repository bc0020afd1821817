"""Load one dataset, in a process of its own that may be killed."""
