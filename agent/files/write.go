package files

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"space/agent/accounts"
	"space/agent/fault"
)

// DefaultMode is that of a new file.
const DefaultMode = 0o644

var buffers = sync.Pool{New: func() any { return new([128 << 10]byte) }}

// Write makes body the content of the file at path: all of it or, after any
// error, none. A new file and the folders made for it are the user's; an
// existing one keeps owner and mode. mode, if not nil, is set in either case. A
// symlink is written through. Other hard links of an existing file keep the old
// content, since the new one is a new file under the name.
//
// The content is not forced to the disk: a crash of the guest may lose it, as
// it may any file written by a program that does not call fsync(2).
func Write(path string, body io.Reader, mode *uint32, user accounts.User) (info Info, created bool, err error) {
	target, err := follow(path)
	if err != nil {
		return Info{}, false, explain(err, path)
	}
	uid, gid, bits := int(user.UID), int(user.GID), uint32(DefaultMode)
	old, err := os.Lstat(target)
	switch {
	case err == nil:
		if err := regular(target, old); err != nil {
			return Info{}, false, err
		}
		stat := old.Sys().(*syscall.Stat_t)
		uid, gid, bits = int(stat.Uid), int(stat.Gid), stat.Mode&0o7777
	case errors.Is(err, syscall.ENOENT):
		created = true
		if _, err := makeAll(filepath.Dir(target), 0o755, user); err != nil {
			return Info{}, false, err
		}
	default:
		return Info{}, false, explain(err, path)
	}
	if mode != nil {
		bits = *mode
	}
	temp, err := writeTemp(filepath.Dir(target), body, uid, gid, bits)
	if err != nil {
		return Info{}, false, explain(err, target)
	}
	if err := os.Rename(temp, target); err != nil {
		os.Remove(temp)
		return Info{}, false, explain(err, target)
	}
	info, err = Stat(target)
	return info, created, err
}

// writeTemp writes a file beside the one it is to replace: rename is atomic
// only within a file system.
func writeTemp(dir string, body io.Reader, uid, gid int, bits uint32) (path string, err error) {
	path = filepath.Join(dir, tempName())
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", err
	}
	err = copyBody(file, body)
	if err == nil {
		// Owner before mode: a change of owner takes the setuid bit away.
		err = file.Chown(uid, gid)
	}
	if err == nil {
		err = syscall.Fchmod(int(file.Fd()), bits)
	}
	if e := file.Close(); err == nil {
		err = e
	}
	if err != nil {
		os.Remove(path)
		return "", err
	}
	return path, nil
}

func tempName() string {
	var b [8]byte
	if _, err := rand.Read(b[:]); err != nil {
		panic(err) // getrandom(2) does not fail on a Linux we run on
	}
	return ".space-" + hex.EncodeToString(b[:]) + ".tmp"
}

// copyBody copies without growing, and tells a sender that went away from a
// disk that is full.
func copyBody(file *os.File, body io.Reader) error {
	buffer := buffers.Get().(*[128 << 10]byte)
	defer buffers.Put(buffer)
	for {
		n, readErr := body.Read(buffer[:])
		if n > 0 {
			if _, err := file.Write(buffer[:n]); err != nil {
				return err
			}
		}
		if readErr == io.EOF {
			return nil
		}
		if readErr != nil {
			return fault.New(http.StatusBadRequest, "body_incomplete",
				"the request body ended early; nothing was changed").Because(readErr)
		}
	}
}

// MakeDir makes a directory and its parents, for the user. It reports whether
// the directory is new. One that exists is left as it is.
func MakeDir(path string, mode uint32, user accounts.User) (info Info, created bool, err error) {
	if created, err = makeAll(path, mode, user); err != nil {
		return Info{}, false, err
	}
	info, err = Stat(path)
	return info, created, err
}

// makeAll is mkdir -p. Only what it makes gets an owner; mode is for the last
// one, parents get 0755.
func makeAll(path string, mode uint32, user accounts.User) (created bool, err error) {
	info, err := os.Stat(path)
	if err == nil {
		if !info.IsDir() {
			return false, fault.New(http.StatusConflict, "already_exists", "%s: exists and is not a directory", path)
		}
		return false, nil
	}
	if !errors.Is(err, syscall.ENOENT) {
		return false, explain(err, path)
	}
	if _, err := makeAll(filepath.Dir(path), 0o755, user); err != nil {
		return false, err
	}
	if err := os.Mkdir(path, 0o700); err != nil {
		if errors.Is(err, syscall.EEXIST) { // another request was faster, or a symlink leads nowhere
			if info, err := os.Stat(path); err == nil && info.IsDir() {
				return false, nil
			}
		}
		return false, explain(err, path)
	}
	// Through a descriptor of what is there now, which cannot be a symlink.
	fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0)
	if err != nil {
		return false, explain(err, path)
	}
	defer syscall.Close(fd)
	if err := syscall.Fchown(fd, int(user.UID), int(user.GID)); err != nil {
		return false, explain(err, path)
	}
	return true, explain(syscall.Fchmod(fd, mode), path)
}
