"""Builds, verifies and publishes immutable snapshots."""
