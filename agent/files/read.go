package files

import (
	"fmt"
	"net/http"
	"os"
	"syscall"

	"space/agent/fault"
)

// pseudo are the file systems whose files do not know their size: it reads 0 or
// 4096, whatever there is to read. From <linux/magic.h>.
var pseudo = map[int64]bool{
	0x9fa0:     true, // proc
	0x62656572: true, // sysfs
	0x63677270: true, // cgroup2
	0x27e0eb:   true, // cgroup
	0x64626720: true, // debugfs
	0x74726163: true, // tracefs
	0x65735546: true, // fuse: may report 0 and still have content
}

// Content is a file opened for reading.
type Content struct {
	*os.File
	Info os.FileInfo
	ETag string
	// Sized is false where the size is not to be believed: read to the end.
	Sized bool
}

// Open opens a regular file. What it refuses it does not open: opening a device
// can do something, and opening a FIFO would wait.
func Open(path string) (*Content, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, missing(err, path)
	}
	if err := regular(path, info); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, missing(err, path)
	}
	// The path may lead elsewhere by now; what counts is what was opened.
	if info, err = file.Stat(); err == nil {
		err = regular(path, info)
	}
	if err != nil {
		file.Close()
		return nil, explain(err, path)
	}
	return &Content{File: file, Info: info, ETag: etag(info), Sized: !isPseudo(file)}, nil
}

func regular(path string, info os.FileInfo) error {
	if info.IsDir() {
		return fault.New(http.StatusConflict, "is_a_directory", "%s: is a directory; GET /files/list shows what it holds", path)
	}
	if !info.Mode().IsRegular() {
		return fault.New(http.StatusUnprocessableEntity, "not_a_regular_file",
			"%s: is a device, pipe or socket; use a command", path)
	}
	return nil
}

func isPseudo(file *os.File) bool {
	conn, err := file.SyscallConn()
	if err != nil {
		return false
	}
	var stat syscall.Statfs_t
	conn.Control(func(fd uintptr) { err = syscall.Fstatfs(int(fd), &stat) })
	return err == nil && pseudo[int64(stat.Type)]
}

// etag changes with any write the kernel notices: replaced files have another
// inode, changed ones another ctime, which no program can set back.
func etag(info os.FileInfo) string {
	s := info.Sys().(*syscall.Stat_t)
	return fmt.Sprintf(`"%x-%x-%x-%x"`, s.Ino, s.Size, s.Mtim.Nano(), s.Ctim.Nano())
}
