"""Pure data and rules: no input or output, nothing asynchronous."""
