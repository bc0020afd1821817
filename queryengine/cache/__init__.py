"""Caches results, and shares one run among identical statements."""
