"""Where the data of datasets comes from: one module a connector, all of them behind `datasets.sources.source`."""
