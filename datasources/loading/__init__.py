"""Loads one dataset into a snapshot file."""
