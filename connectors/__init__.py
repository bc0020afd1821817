"""
The connectors: each package is a plug-in, which the core knows by its row in `runtimeconf.plugins` alone.

`params` of a connector declares how it is written in the YAML; `source` reads its data, and is imported by processes
that do so. A module here is what several connectors share: they do not import each other.
"""
