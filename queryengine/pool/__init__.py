"""Run statements in processes that may be killed: broker, slots, workers and their client."""
