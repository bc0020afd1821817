"""Secret stores that are servers: plug-ins, which the core finds by its registry."""
