"""Who may call: the key set, the DRF authentication class and the permission."""
