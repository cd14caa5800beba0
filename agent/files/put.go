package files

import (
	"errors"
	"io"
	"os"
	"syscall"

	"space/agent/accounts"
)

// Put writes body into the file at path as it comes, and makes it the user's. The
// folder must be there. Unlike Write it changes a file in place:
// whoever watches it or has it open sees just this file written. After an error
// a new file is gone again, and an old one holds what had come. note is called
// with the file's path before the content is written.
func Put(path string, body io.Reader, user accounts.User, note func(path string) error) error {
	info, err := os.Stat(path)
	created := errors.Is(err, syscall.ENOENT)
	switch {
	case err == nil:
		if err := regular(path, info); err != nil {
			return err
		}
	case !created:
		return explain(err, path)
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|syscall.O_NONBLOCK, DefaultMode)
	if err != nil {
		return explain(err, path)
	}
	err = file.Chown(int(user.UID), int(user.GID))
	if err == nil {
		err = note(path)
	}
	if err == nil {
		err = copyBody(file, body)
	}
	if e := file.Close(); err == nil {
		err = e
	}
	if err != nil && created {
		os.Remove(path)
	}
	return explain(err, path)
}
