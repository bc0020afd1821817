"""The interactive prompt of `querykeep sql`."""
