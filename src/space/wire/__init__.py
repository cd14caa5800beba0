"""What our processes say to each other: the models, and a client for each side that is dialled."""
