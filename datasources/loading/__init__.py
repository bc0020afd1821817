"""Load one dataset into a snapshot file."""
