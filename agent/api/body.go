package api

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"unicode/utf8"

	"space/agent/fault"
)

// maxBody bounds a JSON body, in bytes.
const maxBody = 1 << 20

// readJSON reads the body into v. Unknown fields are ignored, so that a newer
// caller can talk to an older agent.
func readJSON(w http.ResponseWriter, r *http.Request, v any) error {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return fault.New(http.StatusRequestEntityTooLarge, "body_too_large", "the body must not be larger than %d bytes", maxBody)
	case err != nil:
		return fault.New(http.StatusBadRequest, "body_incomplete", "the request body ended early").Because(err)
	case !utf8.Valid(body):
		// The decoder would replace such bytes and run something else than was sent.
		return fault.New(http.StatusBadRequest, "bad_request", "the body is not UTF-8")
	}
	err = json.Unmarshal(body, v)
	var wrongType *json.UnmarshalTypeError
	switch {
	case errors.As(err, &wrongType) && wrongType.Field != "":
		return fault.Invalid(wrongType.Field, "must not be a JSON %s", wrongType.Value)
	case err != nil:
		return fault.New(http.StatusBadRequest, "bad_request", "the body is not a JSON object: %v", err)
	}
	return nil
}
