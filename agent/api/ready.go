package api

import (
	"net/http"
	"time"

	"space/agent/fault"
	"space/agent/hook"
)

const (
	defaultReadyTimeoutS = 60
	readyPause           = 500 * time.Millisecond
)

type readyRequest struct {
	TimeoutS *float64 `json:"timeout_s"`
}

// ready runs the image's own check until it succeeds: before that, a template is
// not worth saving. An image without one is ready when it has booted. The check
// may start what it waits for; its programs go on in every copy. An image whose
// service has failed meanwhile is not worth saving either.
func (in *Internal) ready(w http.ResponseWriter, r *http.Request, _ string) error {
	var body readyRequest
	if r.ContentLength != 0 {
		if err := readJSON(w, r, &body); err != nil {
			return err
		}
	}
	timeout, err := patience("timeout_s", body.TimeoutS, defaultReadyTimeoutS)
	if err != nil {
		return err
	}
	deadline := time.Now().Add(timeout)
	for {
		report := in.hooks.Run(r.Context(), hook.Ready, "template", time.Until(deadline))
		if service := in.hooks.Service(); service != nil && service.Failure != "" {
			return fault.New(http.StatusServiceUnavailable, "not_ready", "%s/%s %s", hook.Dir, hook.Start, service.Failure)
		}
		if !report.Ran || report.Status != nil && *report.Status == 0 {
			return writeJSON(w, http.StatusOK, map[string]any{"checked": report.Ran})
		}
		if time.Until(deadline) <= readyPause {
			return fault.New(http.StatusServiceUnavailable, "not_ready",
				"%s/%s did not succeed within %v; the last thing it said: %s", hook.Dir, hook.Ready, timeout, report.OutputTail)
		}
		select {
		case <-time.After(readyPause):
		case <-r.Context().Done():
			return r.Context().Err()
		}
	}
}
