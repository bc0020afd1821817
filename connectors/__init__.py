"""
The connectors. Each package is a plug-in that the core knows only through its row in `runtimeconf.plugins`.

A connector's `params` module declares its YAML parameters. The `source` module reads the data, and is imported only by
processes that do so. The modules in this package are shared by several connectors, because connectors do not import
each other.
"""
