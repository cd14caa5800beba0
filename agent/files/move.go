package files

import (
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"unsafe"

	"space/agent/accounts"
	"space/agent/fault"
	"space/agent/sysno"
)

// Move renames from to to, making to's parents for the user. What is at to is
// replaced only with overwrite, by rename(2)'s rules: a file by a file, an empty
// directory by a directory. Between file systems it copies and then deletes; a
// failure on the way leaves from whole and to untouched.
func Move(from, to string, overwrite bool, user accounts.User) (Info, error) {
	if from == "/" || to == "/" {
		return Info{}, fault.Invalid("from", "the root directory cannot be moved or replaced")
	}
	if _, err := os.Lstat(from); err != nil {
		return Info{}, missing(err, from)
	}
	if _, err := makeAll(filepath.Dir(to), 0o755, user); err != nil {
		return Info{}, err
	}
	err := rename(from, to, overwrite)
	if errors.Is(err, syscall.EXDEV) {
		err = moveAcross(from, to, overwrite)
	}
	switch {
	case errors.Is(err, syscall.EINVAL):
		return Info{}, fault.Invalid("to", "is inside the directory that is to be moved")
	case errors.Is(err, syscall.ENOENT):
		return Info{}, missing(err, from)
	case err != nil:
		return Info{}, explain(err, to)
	}
	return Stat(to)
}

func rename(from, to string, overwrite bool) error {
	if overwrite {
		return syscall.Rename(from, to)
	}
	err := renameNoReplace(from, to)
	if err != syscall.EINVAL {
		return err
	}
	// Either to is inside from, or the file system has no such flag; the plain
	// call tells.
	if _, err := os.Lstat(to); err == nil {
		return syscall.EEXIST
	}
	return syscall.Rename(from, to)
}

func renameNoReplace(from, to string) error {
	const noReplace = 1 // RENAME_NOREPLACE
	f, err := syscall.BytePtrFromString(from)
	if err != nil {
		return err
	}
	t, err := syscall.BytePtrFromString(to)
	if err != nil {
		return err
	}
	const atFDCWD = -100
	here := atFDCWD
	_, _, errno := syscall.Syscall6(sysno.Renameat2, uintptr(here), uintptr(unsafe.Pointer(f)),
		uintptr(here), uintptr(unsafe.Pointer(t)), noReplace, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// moveAcross copies to a temporary name beside to, puts it in place, and only
// then deletes from.
func moveAcross(from, to string, overwrite bool) error {
	temp := filepath.Join(filepath.Dir(to), tempName())
	err := copyTree(from, temp)
	if err == nil {
		err = rename(temp, to, overwrite)
	}
	if err != nil {
		os.RemoveAll(temp)
		return err
	}
	return os.RemoveAll(from)
}

// copyTree copies with owner, mode and times.
func copyTree(from, to string) error {
	info, err := os.Lstat(from)
	if err != nil {
		return err
	}
	stat := info.Sys().(*syscall.Stat_t)
	switch stat.Mode & syscall.S_IFMT {
	case syscall.S_IFLNK:
		target, err := os.Readlink(from)
		if err != nil {
			return err
		}
		if err := os.Symlink(target, to); err != nil {
			return err
		}
		return os.Lchown(to, int(stat.Uid), int(stat.Gid))
	case syscall.S_IFREG:
		err = copyFile(from, to)
	case syscall.S_IFDIR:
		err = copyDir(from, to)
	default:
		return fault.New(http.StatusUnprocessableEntity, "not_a_regular_file",
			"%s: a device, pipe or socket cannot be moved to another file system", from)
	}
	if err != nil {
		return err
	}
	if err := os.Chown(to, int(stat.Uid), int(stat.Gid)); err != nil {
		return err
	}
	if err := syscall.Chmod(to, stat.Mode&0o7777); err != nil {
		return err
	}
	return syscall.UtimesNano(to, []syscall.Timespec{stat.Atim, stat.Mtim})
}

func copyFile(from, to string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(target, source)
	if e := target.Close(); err == nil {
		err = e
	}
	return err
}

func copyDir(from, to string) error {
	if err := os.Mkdir(to, 0o700); err != nil {
		return err
	}
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if err := copyTree(filepath.Join(from, entry.Name()), filepath.Join(to, entry.Name())); err != nil {
			return err
		}
	}
	return nil
}
