package envd

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"

	"space/agent/fault"
	"space/agent/files"
)

// maxComposeBody bounds the request, in bytes.
const maxComposeBody = 1 << 20

// compose makes one file of several, in their order, and deletes those. It
// changes nothing if it fails.
func (h *Handler) compose(w http.ResponseWriter, r *http.Request) error {
	var q struct {
		SourcePaths []string `json:"source_paths"`
		Destination string   `json:"destination"`
		Username    string   `json:"username"`
	}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxComposeBody)).Decode(&q); err != nil {
		return bad("invalid request body: " + err.Error())
	}
	if len(q.SourcePaths) == 0 {
		return bad("source_paths must not be empty")
	}
	if q.Destination == "" {
		return bad("destination is required")
	}
	user, err := lookUp(q.Username)
	if err != nil {
		return err
	}
	destination, err := resolve(q.Destination, user)
	if err != nil {
		return err
	}
	var sources []string
	for _, given := range q.SourcePaths {
		source, err := resolve(given, user)
		if err != nil {
			return err
		}
		if source == destination {
			return bad("source path " + given + " cannot be the same as destination")
		}
		switch info, err := os.Stat(source); {
		case err != nil:
			return fault.New(http.StatusNotFound, "no_such_file", "source file not found: %s", given)
		case !info.Mode().IsRegular():
			return bad("source path is not a regular file: " + given)
		}
		sources = append(sources, source)
	}
	joined := &concatenation{paths: sources}
	defer joined.close()
	if _, _, err := files.Write(destination, joined, nil, user); err != nil {
		return uploadFailure(err, destination, -1)
	}
	for _, source := range sources {
		os.Remove(source)
	}
	h.watchers.catchUp()
	return writeJSON(w, uploaded{Path: destination, Name: filepath.Base(destination), Type: "file"})
}

// concatenation reads files one after the other, one open at a time.
type concatenation struct {
	paths []string
	file  *os.File
}

func (c *concatenation) Read(p []byte) (int, error) {
	for {
		if c.file == nil {
			if len(c.paths) == 0 {
				return 0, io.EOF
			}
			file, err := os.Open(c.paths[0])
			if err != nil {
				return 0, err
			}
			c.file, c.paths = file, c.paths[1:]
		}
		n, err := c.file.Read(p)
		if n > 0 || !errors.Is(err, io.EOF) {
			return n, err
		}
		c.close()
	}
}

func (c *concatenation) close() {
	if c.file != nil {
		c.file.Close()
		c.file = nil
	}
}
