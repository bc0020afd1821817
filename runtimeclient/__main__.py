"""`python -m runtimeclient` is `latchkey`."""

from runtimeclient.main import main

if __name__ == "__main__":
    main()
