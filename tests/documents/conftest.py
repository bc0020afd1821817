"""A configuration in a fresh directory, as in the tests of the core."""

from tests.runtimeconf.conftest import load_text, yaml_file

__all__ = ["load_text", "yaml_file"]
