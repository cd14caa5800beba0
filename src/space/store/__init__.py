"""The only code with SQL."""
