"""Shares snapshots between nodes through object storage. One node publishes the snapshots that all nodes serve."""
