"""Side by side with the peers: see README.md."""
