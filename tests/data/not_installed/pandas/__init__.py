"""Stands before the real pandas in programs that tests start: who installs the runtime does not get it."""

raise ImportError("pandas is not installed")
