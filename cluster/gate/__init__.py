"""The statement gate of a cluster. See docs/internals/decisions/0027-gate-for-spark.md for the reasons."""
