"""Where the data of datasets comes from: one module a connector, all of them behind `datasources.sources.source`."""
