package layer

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"space/agent/fault"
)

// Copy unpacks an archive (tar, gzipped or not) as COPY of a Dockerfile does:
// folders are merged with those that are there, files replace what has their
// name. A folder's content is copied, not the folder. It returns how many files
// and folders were written.
func Copy(body io.Reader, c CopySpec) (int, error) {
	p, err := newPlan(c)
	if err != nil {
		return 0, err
	}
	archive, err := open(body)
	if err != nil {
		return 0, err
	}
	var folders []folderTime
	written := 0
	for {
		entry, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return written, unreadable(err)
		}
		target, ok := p.place(entry.Name, entry.Typeflag == tar.TypeDir)
		if !ok {
			continue
		}
		if err := write(archive, entry, target, p, c); err != nil {
			return written, err
		}
		if entry.Typeflag == tar.TypeDir {
			folders = append(folders, folderTime{target, entry.ModTime})
		}
		written++
	}
	if written == 0 {
		return 0, fault.New(http.StatusUnprocessableEntity, "nothing_to_copy", "the archive has nothing of %q", c.Source)
	}
	for i := len(folders) - 1; i >= 0; i-- { // last, since what is written into a folder changes its time
		folders[i].set()
	}
	return written, nil
}

type folderTime struct {
	path string
	time time.Time
}

func (f folderTime) set() { os.Chtimes(f.path, f.time, f.time) }

func open(body io.Reader) (*tar.Reader, error) {
	buffered := bufio.NewReaderSize(body, 128<<10)
	if magic, _ := buffered.Peek(2); len(magic) == 2 && magic[0] == 0x1f && magic[1] == 0x8b {
		unzipped, err := gzip.NewReader(buffered)
		if err != nil {
			return nil, unreadable(err)
		}
		return tar.NewReader(unzipped), nil
	}
	return tar.NewReader(buffered), nil
}

func unreadable(err error) error {
	return fault.New(http.StatusUnprocessableEntity, "bad_archive", "the archive cannot be read: %v", err).Because(err)
}

func write(archive *tar.Reader, entry *tar.Header, target string, p plan, c CopySpec) error {
	mode := uint32(entry.Mode) & 0o7777
	if c.Mode != nil {
		mode = *c.Mode
	}
	if entry.Typeflag == tar.TypeDir {
		if err := makeFolders(target, c.UID, c.GID); err != nil {
			return err
		}
		if target == p.target { // somebody else's folder, perhaps /: it is copied into, not replaced
			return nil
		}
		return dress(target, c, mode)
	}
	if err := makeFolders(filepath.Dir(target), c.UID, c.GID); err != nil {
		return err
	}
	if err := os.Remove(target); err != nil && !errors.Is(err, syscall.ENOENT) {
		return explain(err, target)
	}
	switch entry.Typeflag {
	case tar.TypeReg, tar.TypeRegA: //nolint:staticcheck // old archives have it
		if err := writeFile(archive, target); err != nil {
			return err
		}
	case tar.TypeSymlink:
		if err := os.Symlink(entry.Linkname, target); err != nil {
			return explain(err, target)
		}
		return explain(os.Lchown(target, c.UID, c.GID), target)
	case tar.TypeLink:
		first, ok := p.place(entry.Linkname, false)
		if !ok {
			return fault.New(http.StatusUnprocessableEntity, "bad_archive", "%s is a link to what is not in the archive", entry.Name)
		}
		return explain(os.Link(first, target), target)
	default:
		return fault.New(http.StatusUnprocessableEntity, "bad_archive", "%s is neither file, folder nor link", entry.Name)
	}
	if err := dress(target, c, mode); err != nil {
		return err
	}
	os.Chtimes(target, entry.ModTime, entry.ModTime)
	return nil
}

func writeFile(archive *tar.Reader, target string) error {
	file, err := os.OpenFile(target, os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return explain(err, target)
	}
	_, err = io.Copy(file, archive)
	if e := file.Close(); err == nil {
		err = e
	}
	var path *os.PathError
	if err != nil && !errors.As(err, &path) {
		return unreadable(err)
	}
	return explain(err, target)
}

// dress gives owner before mode: a change of owner takes the setuid bit away.
func dress(target string, c CopySpec, mode uint32) error {
	if err := os.Lchown(target, c.UID, c.GID); err != nil {
		return explain(err, target)
	}
	return explain(syscall.Chmod(target, mode), target)
}
