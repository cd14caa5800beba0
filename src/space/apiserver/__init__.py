"""The api process: puts the surfaces together over `control`, and answers the edge's question."""
