// Package layer changes an image from inside, for the steps of a template build
// that are no commands: files are copied in, users made, and what the finished
// template starts with is written. It needs nothing of the image but its file
// system, so that images without a shell can be built on too.
//
// Everything here is done as root to the guest's own files. The archive and the
// image may be hostile: they harm nobody but the machine they are in.
package layer

import (
	"errors"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"

	"space/agent/fault"
)

// CopySpec says what of an archive goes where.
type CopySpec struct {
	Source  string // as in the build's context; may be a pattern, whose matches are in the archive
	Target  string // relative to Workdir unless absolute; a folder if it ends with "/"
	Workdir string
	UID     int
	GID     int
	Mode    *uint32 // nil keeps what the archive says
}

// plan is where the entries of an archive go.
type plan struct {
	base   string // of the source: what its entries' names begin with, "" for the context itself
	many   bool   // the source is a pattern or the context: the target is a folder
	target string
	folder bool // the target was written as a folder
}

func newPlan(c CopySpec) (plan, error) {
	if c.Target == "" || strings.IndexByte(c.Source+c.Target, 0) >= 0 {
		return plan{}, fault.Invalid("target", "say where to copy to")
	}
	p := plan{target: c.Target, folder: strings.HasSuffix(c.Target, "/") || path.Base(c.Target) == "."}
	if !filepath.IsAbs(p.target) {
		p.target = filepath.Join("/", c.Workdir, p.target)
	}
	p.target = filepath.Clean(p.target)
	var fixed []string
	for _, part := range strings.Split(path.Clean("/"+c.Source), "/")[1:] {
		if strings.ContainsAny(part, "*?[{") {
			p.many = true
			break
		}
		fixed = append(fixed, part)
	}
	p.base = strings.Join(fixed, "/")
	p.many = p.many || p.base == ""
	return p, nil
}

// place returns where an entry goes. isDir is of the entry itself. ok is false
// for what only leads to the source.
func (p plan) place(name string, isDir bool) (target string, ok bool) {
	name = strings.TrimPrefix(path.Clean("/"+name), "/")
	switch {
	case name == p.base && p.base != "" && !isDir:
		if p.folder || p.many || isFolder(p.target) {
			return filepath.Join(p.target, path.Base(name)), true
		}
		return p.target, true
	case name == p.base:
		return p.target, isDir
	case p.base == "":
		return filepath.Join(p.target, name), true
	case strings.HasPrefix(name, p.base+"/"):
		return filepath.Join(p.target, name[len(p.base)+1:]), true
	}
	return "", false
}

func isFolder(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// makeFolders is mkdir -p; what it makes is root's, and the last one uid's.
func makeFolders(path string, uid, gid int) error {
	if isFolder(path) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return explain(err, path)
	}
	if err := os.Mkdir(path, 0o755); err != nil && !isFolder(path) {
		return explain(err, path)
	}
	return explain(os.Lchown(path, uid, gid), path)
}

func explain(err error, path string) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fault.New(http.StatusInsufficientStorage, "disk_full", "the disk has no room for %s", path).Because(err)
	case errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.EISDIR), errors.Is(err, syscall.EEXIST),
		errors.Is(err, syscall.ENOTEMPTY):
		return fault.New(http.StatusConflict, "already_exists", "%s: there is something of another kind: %v", path, err).Because(err)
	}
	return fault.New(http.StatusUnprocessableEntity, "cannot_write", "%s: %v", path, err).Because(err)
}
