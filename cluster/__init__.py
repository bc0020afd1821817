"""A session on a Spark Connect cluster, used in place of a DuckDB instance."""
