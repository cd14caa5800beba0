package envd

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"space/agent/accounts"
	"space/agent/connect"
)

const (
	typeFile        = "FILE_TYPE_FILE"
	typeDirectory   = "FILE_TYPE_DIRECTORY"
	typeUnspecified = "FILE_TYPE_UNSPECIFIED"
)

// entryAt describes what is at path, of a symlink the link.
func entryAt(path string, names *accounts.Names) (entry, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return entry{}, lookupError(err, path)
	}
	return describeEntry(path, info, names), nil
}

// lookupError says that nothing is at path, where that is the reason.
func lookupError(err error, path string) error {
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return connect.Errorf(connect.NotFound, "path '%s' does not exist", path)
	}
	return connect.Errorf(connect.Internal, "path '%s': %v", path, err)
}

func describeEntry(path string, info os.FileInfo, names *accounts.Names) entry {
	stat := info.Sys().(*syscall.Stat_t)
	e := entry{
		Name:         filepath.Base(path),
		Path:         path,
		Type:         typeOf(info.Mode()),
		Size:         int64String(info.Size()),
		Mode:         uint32(info.Mode().Perm()),
		Permissions:  info.Mode().String(),
		Owner:        names.User(stat.Uid),
		Group:        names.Group(stat.Gid),
		ModifiedTime: info.ModTime().UTC().Format(time.RFC3339Nano),
		Metadata:     readMetadata(path),
	}
	if info.Mode()&os.ModeSymlink != 0 {
		e.IsSymlink, e.Type = true, typeUnspecified
		if target, err := filepath.EvalSymlinks(path); err == nil {
			e.SymlinkTarget = &target
			if info, err := os.Stat(target); err == nil {
				e.Type, e.Mode = typeOf(info.Mode()), uint32(info.Mode().Perm())
			}
		}
	}
	return e
}

func typeOf(mode os.FileMode) string {
	switch {
	case mode.IsRegular():
		return typeFile
	case mode.IsDir():
		return typeDirectory
	}
	return typeUnspecified
}

// metadataPrefix is the part of the extended attributes that is the clients'.
const metadataPrefix = "user.e2b."

// readMetadata returns what clients noted on a file. Links, and file systems
// without such attributes, have none.
func readMetadata(path string) map[string]string {
	var metadata map[string]string
	for _, name := range attributes(path) {
		value := make([]byte, maxAttribute)
		n, err := syscall.Getxattr(path, name, value)
		if err != nil {
			continue
		}
		if metadata == nil {
			metadata = map[string]string{}
		}
		metadata[strings.TrimPrefix(name, metadataPrefix)] = string(value[:n])
	}
	return metadata
}

// maxAttribute is the kernel's limit for one value and for the list of names
// (XATTR_SIZE_MAX, XATTR_LIST_MAX), in bytes.
const maxAttribute = 64 << 10

// attributes names the clients' attributes of a file.
func attributes(path string) (names []string) {
	size, err := syscall.Listxattr(path, nil)
	if err != nil || size == 0 {
		return nil
	}
	list := make([]byte, size+1024)
	if size, err = syscall.Listxattr(path, list); err != nil {
		return nil
	}
	for _, name := range strings.Split(string(list[:size]), "\x00") {
		if strings.HasPrefix(name, metadataPrefix) && len(name) > len(metadataPrefix) {
			names = append(names, name)
		}
	}
	return names
}
