"""SPACE: a disposable Linux computer (a microVM) for every task of an AI agent."""

__version__ = "0.1.0"
