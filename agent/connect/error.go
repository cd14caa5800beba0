// Package connect serves remote calls in the Connect protocol with its JSON
// codec (https://connectrpc.com/docs/protocol), over HTTP/1.1: unary calls,
// server streams and client streams, without compression.
//
// A method is a plain function on Go structs, which are messages: a field's
// name in JSON is its json tag. The package knows nothing of what the methods do.
package connect

import (
	"context"
	"errors"
	"fmt"
	"net/http"
)

// Code is a kind of failure that clients act on.
type Code string

// The codes that methods here use.
const (
	Canceled           Code = "canceled"
	Unknown            Code = "unknown"
	InvalidArgument    Code = "invalid_argument"
	DeadlineExceeded   Code = "deadline_exceeded"
	NotFound           Code = "not_found"
	AlreadyExists      Code = "already_exists"
	PermissionDenied   Code = "permission_denied"
	ResourceExhausted  Code = "resource_exhausted"
	FailedPrecondition Code = "failed_precondition"
	Unimplemented      Code = "unimplemented"
	Internal           Code = "internal"
	Unavailable        Code = "unavailable"
	DataLoss           Code = "data_loss"
	Unauthenticated    Code = "unauthenticated"
)

// statuses are the HTTP statuses of unary errors, as the protocol maps them.
var statuses = map[Code]int{
	Canceled: 499, Unknown: 500, InvalidArgument: 400, DeadlineExceeded: 504, NotFound: 404, AlreadyExists: 409,
	PermissionDenied: 403, ResourceExhausted: 429, FailedPrecondition: 400, Unimplemented: 501, Internal: 500,
	Unavailable: 503, DataLoss: 500, Unauthenticated: 401,
}

// Status is the HTTP status of a unary answer with this code.
func (c Code) Status() int {
	if status, ok := statuses[c]; ok {
		return status
	}
	return http.StatusInternalServerError
}

// Error is what a call fails with.
type Error struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`
}

// Errorf makes an error; message is a format.
func Errorf(code Code, message string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(message, args...)}
}

func (e *Error) Error() string { return string(e.Code) + ": " + e.Message }

// asError finds the Error in err, or says what err is to a client.
func asError(err error) *Error {
	var known *Error
	switch {
	case errors.As(err, &known):
		return known
	case errors.Is(err, context.DeadlineExceeded):
		return Errorf(DeadlineExceeded, "the call did not end in the time it was given")
	case errors.Is(err, context.Canceled):
		return Errorf(Canceled, "the call was given up by its client")
	}
	return Errorf(Unknown, "%v", err)
}
