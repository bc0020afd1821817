"""Share snapshots between nodes through object storage: one node publishes them, the others serve the same."""
