// Package content sends files and takes refused bodies, in whichever protocol.
package content

import (
	"io"
	"net/http"

	"space/agent/fault"
	"space/agent/files"
)

// maxDrain bounds what is read past a refusal, in bytes.
const maxDrain = 256 << 20

// Drain reads a refused body to its end and drops it. Most clients send all of
// it before they read, and would see a broken connection in place of the answer.
func Drain(body io.Reader) {
	io.CopyN(io.Discard, body, maxDrain)
}

// Serve answers GET and HEAD with a file: whole, in ranges, or not at all where
// the client's conditions say so. What it refuses after that, refuse writes.
func Serve(w http.ResponseWriter, r *http.Request, file *files.Content, refuse func(http.ResponseWriter, error)) error {
	if !file.Sized {
		return stream(w, r, file)
	}
	w.Header().Set("ETag", file.ETag)
	http.ServeContent(&refusals{ResponseWriter: w, refuse: refuse}, r, "", file.Info.ModTime(), file.File)
	return nil
}

// stream sends a file whose size is unknown until it has been read. The first
// read comes before the answer, for it is the one that fails.
func stream(w http.ResponseWriter, r *http.Request, file *files.Content) error {
	first := make([]byte, 32<<10)
	n, err := file.Read(first)
	if err != nil && err != io.EOF {
		return fault.New(http.StatusUnprocessableEntity, "not_readable", "%v", err).Because(err)
	}
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodHead {
		return nil
	}
	if _, e := w.Write(first[:n]); e == nil && err == nil {
		io.Copy(w, file)
	}
	return nil
}

// refusals turns what http.ServeContent refuses into the protocol's errors: it
// writes plain text, or nothing. It leaves the headers, among them Content-Range.
type refusals struct {
	http.ResponseWriter
	refuse  func(http.ResponseWriter, error)
	refused bool
}

func (w *refusals) WriteHeader(status int) {
	switch status {
	case http.StatusRequestedRangeNotSatisfiable:
		w.refused = true
		w.refuse(w.ResponseWriter, fault.New(status, "range_not_satisfiable",
			"the file has no such bytes; its size is in Content-Range"))
	case http.StatusPreconditionFailed:
		w.refused = true
		w.refuse(w.ResponseWriter, fault.New(status, "precondition_failed", "the file is not the version you asked for"))
	default:
		w.ResponseWriter.WriteHeader(status)
	}
}

func (w *refusals) Write(p []byte) (int, error) {
	if w.refused {
		return len(p), nil
	}
	return w.ResponseWriter.Write(p)
}

// ReadFrom keeps sendfile(2) possible.
func (w *refusals) ReadFrom(src io.Reader) (int64, error) {
	return io.Copy(w.ResponseWriter, src)
}
