"""Which runtime to talk to, and with which key: profiles, credentials, keyrings."""
