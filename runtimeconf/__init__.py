"""
The runtime YAML as typed, validated values. Nothing else knows YAML or secret stores.

`schema` declares every field and how it is read; `model` holds the values and their defaults.
"""
