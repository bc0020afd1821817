"""Secret stores that are servers. They are plug-ins that the core finds through its registry."""
