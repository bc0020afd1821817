"""The live screen of `querykeep top`: what it shows, how it is drawn, and the terminal."""
