// Package fault is the one error type that crosses the agent's HTTP border. A
// Fault carries what a caller may act on (status, a stable code) and what a
// person should read (detail); the cause stays inside.
package fault

import (
	"errors"
	"fmt"
	"net/http"
)

// Fault is a refusal with a stable code. Detail says what to do about it.
type Fault struct {
	Status int
	Code   string
	Detail string
	cause  error
}

// New makes a fault; detail is a format.
func New(status int, code, detail string, args ...any) *Fault {
	return &Fault{Status: status, Code: code, Detail: fmt.Sprintf(detail, args...)}
}

// Invalid is the fault of one field of a request that parsed but makes no sense.
func Invalid(field, detail string, args ...any) *Fault {
	return New(http.StatusUnprocessableEntity, "invalid_argument", field+": "+detail, args...)
}

// Because keeps the cause for errors.Is and the log; it is never sent.
func (f *Fault) Because(cause error) *Fault {
	f.cause = cause
	return f
}

func (f *Fault) Error() string {
	if f.cause != nil {
		return f.Code + ": " + f.Detail + ": " + f.cause.Error()
	}
	return f.Code + ": " + f.Detail
}

func (f *Fault) Unwrap() error { return f.cause }

// From returns the fault in err's chain, or an internal one around err.
func From(err error) *Fault {
	var f *Fault
	if errors.As(err, &f) {
		return f
	}
	return New(http.StatusInternalServerError, "internal", "the agent failed: %v", err).Because(err)
}
