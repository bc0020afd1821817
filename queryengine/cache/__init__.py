"""Keep results, and share one run among identical statements."""
