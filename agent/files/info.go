package files

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"space/agent/accounts"
)

// Info describes one entry; of a symlink, the link itself.
type Info struct {
	Name          string    `json:"name"`
	Path          string    `json:"path"`
	Type          string    `json:"type"` // file, directory, symlink, other
	SizeBytes     int64     `json:"size_bytes"`
	Mode          string    `json:"mode"`        // "0644", with setuid and so on "4755"
	Permissions   string    `json:"permissions"` // "-rw-r--r--", as ls writes it
	User          string    `json:"user"`
	Group         string    `json:"group"`
	ModifiedAt    time.Time `json:"modified_at"`
	SymlinkTarget *string   `json:"symlink_target"`
}

// Stat describes the entry at path.
func Stat(path string) (Info, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return Info{}, missing(err, path)
	}
	return describe(path, info, accounts.ReadNames()), nil
}

func describe(path string, info os.FileInfo, names *accounts.Names) Info {
	stat := info.Sys().(*syscall.Stat_t)
	d := Info{
		Name:        filepath.Base(path),
		Path:        path,
		Type:        "other",
		SizeBytes:   info.Size(),
		Mode:        fmt.Sprintf("%04o", stat.Mode&0o7777),
		Permissions: permissions(stat.Mode),
		User:        names.User(stat.Uid),
		Group:       names.Group(stat.Gid),
		ModifiedAt:  info.ModTime().UTC(),
	}
	switch stat.Mode & syscall.S_IFMT {
	case syscall.S_IFREG:
		d.Type = "file"
	case syscall.S_IFDIR:
		d.Type = "directory"
	case syscall.S_IFLNK:
		d.Type = "symlink"
		if target, err := os.Readlink(path); err == nil {
			d.SymlinkTarget = &target
		}
	}
	return d
}

// permissions writes a mode as ls -l does, which is not how os.FileMode does.
func permissions(mode uint32) string {
	kinds := map[uint32]byte{
		syscall.S_IFREG: '-', syscall.S_IFDIR: 'd', syscall.S_IFLNK: 'l', syscall.S_IFBLK: 'b',
		syscall.S_IFCHR: 'c', syscall.S_IFIFO: 'p', syscall.S_IFSOCK: 's',
	}
	text := []byte("?rwxrwxrwx")
	if kind, ok := kinds[mode&syscall.S_IFMT]; ok {
		text[0] = kind
	}
	for i := 0; i < 9; i++ {
		if mode&(1<<(8-i)) == 0 {
			text[1+i] = '-'
		}
	}
	for _, special := range []struct {
		bit      uint32
		at       int
		with, no byte // with and without the execute bit it replaces
	}{{syscall.S_ISUID, 3, 's', 'S'}, {syscall.S_ISGID, 6, 's', 'S'}, {syscall.S_ISVTX, 9, 't', 'T'}} {
		if mode&special.bit != 0 {
			if text[special.at] == 'x' {
				text[special.at] = special.with
			} else {
				text[special.at] = special.no
			}
		}
	}
	return string(text)
}
