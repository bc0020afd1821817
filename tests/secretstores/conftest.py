"""A configuration in a fresh directory, as in the tests of the core."""

from tests.runtimeconf.conftest import fault, faults, load_text, yaml_file

__all__ = ["fault", "faults", "load_text", "yaml_file"]
