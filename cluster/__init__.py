"""A session on a cluster that speaks Spark Connect, in place of a DuckDB instance."""
