"""The statement gate of a cluster: docs/internals/decisions/0027-gate-for-spark.md has the reasons."""
