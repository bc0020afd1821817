"""The measurements. Each module contains the rows for one subject."""
