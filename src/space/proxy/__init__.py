"""The static Envoy configurations and how an Envoy is started."""
