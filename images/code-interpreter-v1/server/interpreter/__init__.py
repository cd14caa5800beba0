"""The code interpreter's server: runs code in kernels that keep their state, one for each context, over HTTP."""
