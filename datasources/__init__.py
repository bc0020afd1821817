"""The origin and freshness of data: sources, snapshots, the refresher and the registry."""
