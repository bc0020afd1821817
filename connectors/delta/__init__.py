"""The connectors `delta` and `delta_lake`: Delta Lake tables."""
