"""Keeps datasets fresh: schedule, runs, history, control."""
