"""`python -m runtimeclient` is `querykeep`."""

from runtimeclient.main import main

if __name__ == "__main__":
    main()
