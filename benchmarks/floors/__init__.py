"""Minimal programs that do only a part of the work. The difference from them is the cost of the rest."""
