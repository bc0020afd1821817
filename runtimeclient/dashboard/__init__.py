"""The live screen of `querykeep top`: its data, its layout, and the terminal."""
