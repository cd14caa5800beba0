package envd

import (
	"compress/gzip"
	"io"
	"mime"
	"net/http"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"

	"space/agent/accounts"
	"space/agent/content"
	"space/agent/fault"
	"space/agent/files"
)

// filePlace is who asks and, if the query names one, the path.
type filePlace struct {
	query url.Values
	user  accounts.User
	path  string // "" where the query has none
}

// openFiles begins every request for files: who may, who acts, and where.
func (h *Handler) openFiles(r *http.Request, operation string) (p filePlace, err error) {
	if p.query, err = url.ParseQuery(r.URL.RawQuery); err != nil {
		return p, fault.New(http.StatusBadRequest, "bad_request", "the query string is not valid: %v", err)
	}
	if err = h.admitFile(r, p.query, operation); err != nil {
		return p, err
	}
	h.used()
	if p.user, err = lookUp(p.query.Get("username")); err != nil {
		return p, err
	}
	if p.query.Has("path") {
		p.path, err = resolve(p.query.Get("path"), p.user)
	}
	return p, err
}

// download serves GET and HEAD.
func (h *Handler) download(w http.ResponseWriter, r *http.Request) error {
	at, err := h.openFiles(r, "read")
	if err != nil {
		return err
	}
	defer h.used()
	if at.path == "" {
		if at.path, err = resolve("", at.user); err != nil {
			return err
		}
	}
	file, err := files.Open(at.path)
	if err != nil {
		return unreadable(err, at.path)
	}
	defer file.Close()
	encoding, err := encodingFor(r)
	if err != nil {
		return err
	}
	name := filepath.Base(at.path)
	kind := mime.TypeByExtension(filepath.Ext(name))
	if kind == "" { // not guessed from the content, which could make a page of it in a browser
		kind = "application/octet-stream"
	}
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Content-Disposition", mime.FormatMediaType("inline", map[string]string{"filename": name}))
	w.Header().Set("Vary", "Accept-Encoding")
	if encoding == "gzip" {
		pack(w, r, file)
		return nil
	}
	return content.Serve(w, r, file, writeError)
}

// unreadable says why a file cannot be sent.
func unreadable(err error, path string) error {
	switch f := fault.From(err); f.Code {
	case "no_such_file":
		return fault.New(http.StatusNotFound, f.Code, "path '%s' does not exist", path)
	case "is_a_directory":
		return fault.New(http.StatusBadRequest, f.Code, "path '%s' is a directory", path)
	case "not_a_regular_file":
		return fault.New(http.StatusBadRequest, f.Code, "path '%s' is a device, pipe or socket", path)
	}
	return err
}

// pack sends a file compressed. What fails after the beginning cuts the
// connection, which no reader takes for the end.
func pack(w http.ResponseWriter, r *http.Request, file io.Reader) {
	w.Header().Set("Content-Encoding", "gzip")
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodHead {
		return
	}
	packer := gzip.NewWriter(w)
	if _, err := io.Copy(packer, file); err != nil || packer.Close() != nil {
		panic(http.ErrAbortHandler)
	}
}

// encodingFor chooses between "" and "gzip" by Accept-Encoding. A part of a
// file, or a question whether it has changed, is answered unpacked.
func encodingFor(r *http.Request) (string, error) {
	gzipQ, identityQ, otherQ := -1.0, -1.0, -1.0
	for _, item := range strings.Split(r.Header.Get("Accept-Encoding"), ",") {
		name, params, _ := strings.Cut(strings.TrimSpace(item), ";")
		q := 1.0
		if text := strings.ReplaceAll(strings.ToLower(params), " ", ""); strings.HasPrefix(text, "q=") {
			var err error
			if q, err = strconv.ParseFloat(text[2:], 64); err != nil {
				return "", fault.New(http.StatusBadRequest, "bad_request", "Accept-Encoding is not valid: %q", item)
			}
		}
		switch strings.ToLower(strings.TrimSpace(name)) {
		case "gzip", "x-gzip":
			gzipQ = q
		case "identity":
			identityQ = q
		case "*":
			otherQ = q
		}
	}
	if identityQ < 0 && otherQ == 0 {
		identityQ = 0
	}
	for _, header := range []string{"Range", "If-Range", "If-None-Match", "If-Match", "If-Modified-Since", "If-Unmodified-Since"} {
		if r.Header.Get(header) != "" && identityQ != 0 {
			return "", nil
		}
	}
	switch {
	case gzipQ > 0 && gzipQ >= identityQ:
		return "gzip", nil
	case identityQ != 0:
		return "", nil
	case otherQ > 0:
		return "gzip", nil
	}
	return "", fault.New(http.StatusNotAcceptable, "not_acceptable", "no acceptable encoding: gzip and identity are supported")
}
