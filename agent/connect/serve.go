package connect

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"strconv"
	"time"
)

// maxMessage bounds one message that comes in, in bytes.
const maxMessage = 32 << 20

const (
	unaryType  = "application/json"
	streamType = "application/connect+json"
)

// Unary serves a method of one message in and one out.
func Unary[Q, A any](method func(r *http.Request, q *Q) (*A, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, err := unary(w, r, method)
		if err == nil {
			writeUnary(w, http.StatusOK, answer)
			return
		}
		failure := asError(err)
		writeUnary(w, failure.Code.Status(), failure)
	})
}

func unary[Q, A any](w http.ResponseWriter, r *http.Request, method func(r *http.Request, q *Q) (*A, error)) (*A, error) {
	r, cancel, err := admit(w, r, unaryType)
	if err != nil {
		return nil, err
	}
	defer cancel()
	if encoding := r.Header.Get("Content-Encoding"); encoding != "" && encoding != "identity" {
		return nil, Errorf(Unimplemented, "compression %q is not supported", encoding)
	}
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxMessage))
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return nil, tooLargeError()
	} else if err != nil {
		return nil, Errorf(Canceled, "the request ended early")
	}
	if len(data) == 0 {
		data = []byte("{}")
	}
	var q Q
	if err := decode(data, &q); err != nil {
		return nil, err
	}
	answer, err := method(r, &q)
	if err == nil && errors.Is(r.Context().Err(), context.DeadlineExceeded) {
		err = context.DeadlineExceeded
	}
	return answer, err
}

func writeUnary(w http.ResponseWriter, status int, v any) {
	data := encode(v)
	w.Header().Set("Content-Type", unaryType)
	w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	w.WriteHeader(status)
	w.Write(data)
}

// encode writes JSON for programs: no HTML escapes, no line end.
func encode(v any) []byte {
	var out bytes.Buffer
	writer := json.NewEncoder(&out)
	writer.SetEscapeHTML(false)
	if err := writer.Encode(v); err != nil {
		panic(err) // messages are plain structs
	}
	return bytes.TrimSuffix(out.Bytes(), []byte("\n"))
}

// admit checks what all calls have in common. The request that it returns ends
// with the time that the client allows.
func admit(w http.ResponseWriter, r *http.Request, contentType string) (*http.Request, context.CancelFunc, error) {
	if media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || media != contentType {
		w.Header().Set("Accept-Post", contentType)
		return nil, nil, Errorf(InvalidArgument, "Content-Type must be %s", contentType)
	}
	if version := r.Header.Get("Connect-Protocol-Version"); version != "" && version != "1" {
		return nil, nil, Errorf(InvalidArgument, "Connect-Protocol-Version must be 1, not %q", version)
	}
	timeout, err := Timeout(r)
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := r.Context(), context.CancelFunc(func() {})
	if timeout > 0 {
		ctx, cancel = context.WithTimeout(ctx, timeout)
	}
	return r.WithContext(ctx), cancel, nil
}

// maxTimeoutDigits is the protocol's: about 115 days.
const maxTimeoutDigits = 10

// Timeout is the time that the client allows for the call, 0 for any.
func Timeout(r *http.Request) (time.Duration, error) {
	text := r.Header.Get("Connect-Timeout-Ms")
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil || len(text) > maxTimeoutDigits {
		return 0, Errorf(InvalidArgument, "Connect-Timeout-Ms must be a number of at most %d digits", maxTimeoutDigits)
	}
	return time.Duration(n) * time.Millisecond, nil
}

func tooLargeError() error {
	return Errorf(ResourceExhausted, "a message must not be larger than %d bytes", maxMessage)
}
