"""The sources of datasets: one module per connector, all behind the interface in `datasources.sources.source`."""
