"""Minimal programs that do only a part of the work; the difference to them is the cost of the rest."""
