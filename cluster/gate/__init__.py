"""The statement gate of a cluster: docs/decisions/0027-gate-for-spark.md has the reasons."""
