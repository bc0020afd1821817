"""Build, verify and publish immutable snapshots."""
