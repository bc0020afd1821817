"""The connectors `delta` and `delta_lake`: tables of Delta Lake."""
