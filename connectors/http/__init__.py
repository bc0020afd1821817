"""The connectors `http` and `https`: files of web servers."""
