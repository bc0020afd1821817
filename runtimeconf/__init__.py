"""The runtime YAML as typed, validated values. Nothing else knows YAML or secret stores."""
