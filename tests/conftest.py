"""Makes the modules of this folder importable from every test below it."""
