"""Client of the agent in a guest."""
