package api

import (
	"net/http"
	"time"

	"space/agent/peer"
)

// newServer has the settings both listeners share. Nothing has a total
// deadline: streams and uploads last as long as they last. Idle connections
// stay longer than the hour after which Envoy closes them, so that a request
// never meets a connection that the agent is just closing.
func newServer(handler http.Handler) *http.Server {
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 15 * time.Second,
		IdleTimeout:       75 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ConnContext:       peer.Keep,
		ErrorLog:          discard,
	}
}
