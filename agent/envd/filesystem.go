package envd

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"space/agent/accounts"
	"space/agent/connect"
	"space/agent/files"
)

// maxEntries is how many entries one listing has at most: their description
// takes some hundred bytes each in the sandbox's own memory.
const maxEntries = 100_000

func (h *Handler) stat(r *http.Request, q *pathRequest) (*entryResponse, error) {
	_, path, err := placeOf(r, q.Path)
	if err != nil {
		return nil, err
	}
	e, err := entryAt(path, accounts.ReadNames())
	return &entryResponse{e}, err
}

// placeOf is who calls and the path that is meant.
func placeOf(r *http.Request, path string) (user accounts.User, resolved string, err error) {
	if user, err = caller(r); err != nil {
		return user, "", err
	}
	resolved, err = resolve(path, user)
	return user, resolved, failure(err)
}

func (h *Handler) makeDir(r *http.Request, q *pathRequest) (*entryResponse, error) {
	user, path, err := placeOf(r, q.Path)
	if err != nil {
		return nil, err
	}
	if info, err := os.Stat(path); err == nil && !info.IsDir() {
		return nil, connect.Errorf(connect.InvalidArgument, "path already exists but it is not a directory: %s", path)
	}
	_, created, err := files.MakeDir(path, 0o755, user)
	if err != nil {
		return nil, failure(err)
	}
	if !created {
		return nil, connect.Errorf(connect.AlreadyExists, "directory already exists: %s", path)
	}
	h.watchers.catchUp()
	e, err := entryAt(path, accounts.ReadNames())
	return &entryResponse{e}, err
}

func (h *Handler) move(r *http.Request, q *moveRequest) (*entryResponse, error) {
	user, from, err := placeOf(r, q.Source)
	if err != nil {
		return nil, err
	}
	to, err := resolve(q.Destination, user)
	if err != nil {
		return nil, failure(err)
	}
	if _, err := files.Move(from, to, true, user); err != nil {
		return nil, failure(err)
	}
	h.watchers.catchUp()
	e, err := entryAt(to, accounts.ReadNames())
	return &entryResponse{e}, err
}

// remove deletes what is at a path with all it holds. Nothing there is as good.
func (h *Handler) remove(r *http.Request, q *pathRequest) (*empty, error) {
	_, path, err := placeOf(r, q.Path)
	if err != nil {
		return nil, err
	}
	if path == "/" {
		return nil, connect.Errorf(connect.InvalidArgument, "the root directory cannot be removed; kill the sandbox")
	}
	if err := os.RemoveAll(path); err != nil && !errors.Is(err, syscall.ENOTDIR) {
		return nil, connect.Errorf(connect.Internal, "error removing file or directory: %v", err)
	}
	h.watchers.catchUp()
	return &empty{}, nil
}

// listDir lists depth levels, each directory before its content, sorted by
// name. A path that leads to a directory by a symlink is listed under its own name.
func (h *Handler) listDir(r *http.Request, q *listRequest) (*listResponse, error) {
	_, path, err := placeOf(r, q.Path)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(path)
	if errors.Is(err, syscall.ELOOP) {
		return nil, connect.Errorf(connect.InvalidArgument, "symlinks lead in a circle: %s", path)
	}
	if err != nil {
		return nil, lookupError(err, path)
	}
	if !info.IsDir() {
		return nil, connect.Errorf(connect.InvalidArgument, "path is not a directory: %s", path)
	}
	depth := int(q.Depth)
	if depth == 0 {
		depth = 1
	}
	l := listing{root: path, depth: depth, names: accounts.ReadNames(), entries: []entry{}}
	// The slash makes the walk go through a symlink.
	if err := filepath.WalkDir(strings.TrimSuffix(path, "/")+"/", l.visit); err != nil {
		return nil, err
	}
	return &listResponse{l.entries}, nil
}

type listing struct {
	root    string
	depth   int
	names   *accounts.Names
	entries []entry
}

func (l *listing) visit(path string, d os.DirEntry, err error) error {
	path = filepath.Clean(path)
	if path == l.root {
		if err != nil {
			return lookupError(err, path)
		}
		return nil
	}
	if err != nil { // a directory that vanished, or cannot be read: it is shown without content
		return nil
	}
	info, err := d.Info()
	if err != nil {
		return nil // gone since
	}
	if len(l.entries) == maxEntries {
		return connect.Errorf(connect.ResourceExhausted, "there are more than %d entries; list fewer levels", maxEntries)
	}
	l.entries = append(l.entries, describeEntry(path, info, l.names))
	below := strings.TrimPrefix(strings.TrimPrefix(path, l.root), "/")
	if d.IsDir() && strings.Count(below, "/")+1 >= l.depth {
		return filepath.SkipDir
	}
	return nil
}
