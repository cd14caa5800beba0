package volumeapi

import (
	"errors"
	"net/http"
	"os"
	"syscall"
)

// refusal is an answer that says why not.
type refusal struct {
	status  int
	code    string
	message string
}

func (r refusal) Error() string { return r.code + ": " + r.message }

var refusals = map[syscall.Errno]refusal{
	syscall.ENOENT:       {http.StatusNotFound, "not_found", "There is nothing at this path."},
	syscall.ENOTDIR:      {http.StatusNotFound, "not_found", "A part of this path is not a folder."},
	syscall.EEXIST:       {http.StatusConflict, "already_exists", "There is something at this path already."},
	syscall.EISDIR:       {http.StatusBadRequest, "is_a_directory", "There is a folder at this path, not a file."},
	syscall.ENXIO:        {http.StatusBadRequest, "not_a_file", "What is at this path has no content."},
	syscall.EINVAL:       {http.StatusBadRequest, "invalid_argument", "The path cannot be one."},
	syscall.ENAMETOOLONG: {http.StatusBadRequest, "invalid_argument", "A name in the path is longer than 255 bytes."},
	syscall.ELOOP:        {http.StatusBadRequest, "invalid_argument", "The path leads through too many symbolic links."},
	syscall.EFBIG:        {http.StatusBadRequest, "invalid_argument", "The file would be too long."},
	syscall.ENOSPC:       {http.StatusInsufficientStorage, "storage_full", "The volume, or the host's disk, has no room for it. Delete something."},
}

func writeError(w http.ResponseWriter, err error) {
	var said refusal
	if !errors.As(err, &said) {
		var errno syscall.Errno
		known := false
		if errors.As(err, &errno) {
			said, known = refusals[errno]
		}
		if !known && errors.Is(err, os.ErrNotExist) {
			said, known = refusals[syscall.ENOENT], true
		}
		if !known {
			said = refusal{http.StatusInternalServerError, "internal", "The volume's server failed: " + err.Error() + "."}
		}
	}
	writeJSON(w, said.status, map[string]string{"code": said.code, "message": said.message})
}
