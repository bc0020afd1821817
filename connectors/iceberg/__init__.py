"""The connector `iceberg`: tables of Apache Iceberg."""
