"""Loops over `control`: they heal what a crash left and carry facts from the workers into the store."""
