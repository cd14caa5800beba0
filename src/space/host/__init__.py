"""The only code that runs programs or touches /proc and /sys."""
