"""The connectors `http` and `https`: files on web servers."""
