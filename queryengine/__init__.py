"""Run one statement: gate, locked session, encoders, and the catalog (the manifest of published snapshots)."""
