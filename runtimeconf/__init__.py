"""
Reads the configuration file into typed, validated values. Only this package knows YAML and secret stores.

`schema` declares every field and how it is read. `model` defines the resulting values and their defaults.
"""
