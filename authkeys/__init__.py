"""Authentication: the key set, the decision on each request, and the DRF classes that apply it to HTTP."""
