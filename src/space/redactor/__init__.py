"""Takes secrets out of answers to guests: a process of its own, since it is one of two that see bytes of theirs."""
