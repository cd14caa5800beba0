// Package files reads and changes the sandbox's file system for callers from
// outside. It acts as root on purpose: the whole file system belongs to the
// sandbox, and whoever holds its token may do anything in it. A user matters
// only for where relative paths begin and who owns what is made.
//
// The package knows nothing of HTTP. Refusals are faults.
package files

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"space/agent/accounts"
	"space/agent/fault"
)

// Linux's limits, in bytes, without the terminating zero.
const (
	maxPath = 4095
	maxName = 255
)

// maxLinks is how many symlinks the kernel follows before it gives up.
const maxLinks = 40

// Resolve makes a path absolute and clean. A relative one begins at the user's
// home. ".." takes the path apart as text, also after a symlink.
func Resolve(path string, user accounts.User) (string, error) {
	switch {
	case path == "":
		return "", invalidPath("path is missing")
	case strings.IndexByte(path, 0) >= 0:
		return "", invalidPath("a path cannot contain NUL")
	case !filepath.IsAbs(path):
		path = user.Home + "/" + path
	}
	path = filepath.Clean("/" + path)
	if len(path) > maxPath {
		return "", invalidPath("the path is longer than %d bytes", maxPath)
	}
	for _, name := range strings.Split(path, "/") {
		if len(name) > maxName {
			return "", invalidPath("one name in the path is longer than %d bytes", maxName)
		}
	}
	return path, nil
}

func invalidPath(detail string, args ...any) *fault.Fault {
	return fault.New(http.StatusUnprocessableEntity, "invalid_path", detail, args...)
}

// follow returns where a path's last component leads, which need not exist.
func follow(path string) (string, error) {
	for i := 0; i < maxLinks; i++ {
		info, err := os.Lstat(path)
		if errors.Is(err, os.ErrNotExist) {
			return path, nil
		}
		if err != nil {
			return "", err
		}
		if info.Mode()&os.ModeSymlink == 0 {
			return path, nil
		}
		target, err := os.Readlink(path)
		if err != nil {
			return "", err
		}
		if !filepath.IsAbs(target) {
			// The folder may itself be reached by a symlink, and the target
			// begin with "..": leave both to the kernel.
			folder, err := filepath.EvalSymlinks(filepath.Dir(path))
			if err != nil {
				return "", err
			}
			target = folder + "/" + target
		}
		path = filepath.Clean(target)
	}
	return "", syscall.ELOOP
}

// explain turns an error of the file system into a fault about path.
func explain(err error, path string) error {
	var known *fault.Fault
	if err == nil || errors.As(err, &known) {
		return err
	}
	is := func(targets ...syscall.Errno) bool {
		for _, target := range targets {
			if errors.Is(err, target) {
				return true
			}
		}
		return false
	}
	made := func(status int, code, detail string) error {
		return fault.New(status, code, "%s: %s", path, detail).Because(err)
	}
	switch {
	case is(syscall.ENOENT):
		return made(http.StatusNotFound, "no_such_file", "there is no such file or directory")
	case is(syscall.ENOTDIR):
		return made(http.StatusConflict, "not_a_directory", "a part of the path that must be a directory is not")
	case is(syscall.EISDIR):
		return made(http.StatusConflict, "is_a_directory", "there is a directory")
	case is(syscall.EEXIST):
		return made(http.StatusConflict, "already_exists", "it exists already")
	case is(syscall.ENOTEMPTY):
		return made(http.StatusConflict, "directory_not_empty", "the directory is not empty")
	case is(syscall.ENOSPC, syscall.EDQUOT):
		return made(http.StatusInsufficientStorage, "disk_full", "the sandbox's disk is full; delete something first")
	case is(syscall.ENAMETOOLONG):
		return made(http.StatusUnprocessableEntity, "invalid_path", "the path or a name in it is too long")
	case is(syscall.ELOOP):
		return made(http.StatusUnprocessableEntity, "invalid_path", "symlinks lead in a circle")
	case is(syscall.EROFS):
		return made(http.StatusForbidden, "read_only", "the file system is read-only")
	case is(syscall.EACCES, syscall.EPERM):
		return made(http.StatusForbidden, "permission_denied", "the file system does not permit this, even to root")
	case is(syscall.EBUSY, syscall.ETXTBSY):
		return made(http.StatusConflict, "busy", "it is in use, for example as a mount point")
	}
	return err
}

// missing is explain for looking something up, where a file in the place of a
// directory only means that nothing is there.
func missing(err error, path string) error {
	if errors.Is(err, syscall.ENOTDIR) {
		err = syscall.ENOENT
	}
	return explain(err, path)
}
