"""The connector `iceberg`: Apache Iceberg tables."""
