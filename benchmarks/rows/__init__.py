"""What is measured. A module holds the rows of one subject matter."""
