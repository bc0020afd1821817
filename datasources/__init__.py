"""Where data comes from and how fresh it is: sources, snapshots, the refresher and the registry."""
