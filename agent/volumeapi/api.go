// Package volumeapi is a volume's content over HTTP, as clients of the control
// plane see it: files, folders and what is known of them. Who may is judged
// before a request comes here.
package volumeapi

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"syscall"
	"time"

	"space/agent/volume"
)

// maxEntries bounds one listing.
const maxEntries = 50_000

const (
	defaultFileMode = 0o644
	defaultDirMode  = 0o755
)

// New returns the handler for one volume.
func New(tree *volume.Tree) http.Handler {
	a := &api{tree}
	routes := map[string]func(http.ResponseWriter, *http.Request, url.Values) error{
		"GET /dir": a.list, "POST /dir": a.makeDir,
		"GET /path": a.stat, "PATCH /path": a.change, "DELETE /path": a.remove,
		"GET /file": a.read, "PUT /file": a.write,
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handle, known := routes[r.Method+" "+r.URL.Path]
		if !known {
			writeError(w, refusal{http.StatusNotFound, "not_found", "There is nothing at this path."})
			return
		}
		given, err := url.ParseQuery(r.URL.RawQuery)
		if err != nil {
			writeError(w, refusal{http.StatusBadRequest, "invalid_argument", "The query string is not valid."})
			return
		}
		if err := handle(w, r, given); err != nil {
			writeError(w, err)
		}
	})
}

type api struct{ tree *volume.Tree }

// entry is what is told of an entry.
type entry struct {
	Name   string    `json:"name"`
	Type   string    `json:"type"`
	Path   string    `json:"path"`
	Size   int64     `json:"size"`
	Mode   uint32    `json:"mode"`
	UID    uint32    `json:"uid"`
	GID    uint32    `json:"gid"`
	Atime  time.Time `json:"atime"`
	Mtime  time.Time `json:"mtime"`
	Ctime  time.Time `json:"ctime"`
	Target string    `json:"target,omitempty"`
}

func describe(at string, node *volume.Node) (entry, error) {
	a, err := node.Attr()
	if err != nil {
		return entry{}, err
	}
	found := entry{
		Name: path.Base(at), Type: "unknown", Path: at, Size: a.Size, Mode: a.Mode & 0o7777, UID: a.UID, GID: a.GID,
		Atime: moment(a.Atime), Mtime: moment(a.Mtime), Ctime: moment(a.Ctime),
	}
	switch {
	case a.IsDir():
		found.Type = "directory"
	case a.IsFile():
		found.Type = "file"
	case a.IsLink():
		found.Type = "symlink"
		found.Target, err = node.Target()
	}
	return found, err
}

func moment(t syscall.Timespec) time.Time { return time.Unix(t.Sec, t.Nsec).UTC() }

// find looks up the path of a request, where there must be something.
func (a *api) find(given url.Values, follow bool) (*volume.Place, string, error) {
	named, err := pathOf(given)
	if err != nil {
		return nil, "", err
	}
	place, err := a.tree.Find(named, follow, nil)
	if err == nil && place.Node == nil {
		place.Close()
		err = syscall.ENOENT
	}
	return place, named, err
}

func pathOf(given url.Values) (string, error) {
	if !given.Has("path") {
		return "", refusal{http.StatusBadRequest, "invalid_argument", "path: must be given."}
	}
	return path.Clean("/" + given.Get("path")), nil
}

func (a *api) stat(w http.ResponseWriter, _ *http.Request, given url.Values) error {
	place, named, err := a.find(given, false)
	if err != nil {
		return err
	}
	defer place.Close()
	found, err := describe(named, place.Node)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, found)
}

func (a *api) list(w http.ResponseWriter, _ *http.Request, given url.Values) error {
	depth, err := number(given, "depth", 1)
	if err != nil {
		return err
	}
	if depth < 1 || depth > 100 {
		return refusal{http.StatusBadRequest, "invalid_argument", "depth: must be from 1 to 100."}
	}
	place, named, err := a.find(given, true)
	if err != nil {
		return err
	}
	defer place.Close()
	found, err := below(place.Node, named, int(depth), []entry{})
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, found)
}

// below appends what is in a folder, and each folder's content behind it. What
// goes away meanwhile is left out.
func below(dir *volume.Node, at string, depth int, found []entry) ([]entry, error) {
	err := dir.Each(func(name string) error {
		if len(found) >= maxEntries {
			return refusal{http.StatusBadRequest, "too_many_entries", fmt.Sprintf("There are more than %d entries; list a folder further down, or with a smaller depth.", maxEntries)}
		}
		node, err := dir.Lookup(name)
		if err != nil {
			return nil
		}
		defer node.Close()
		one, err := describe(path.Join(at, name), node)
		if err != nil {
			return err
		}
		found = append(found, one)
		if one.Type == "directory" && depth > 1 {
			found, err = below(node, one.Path, depth-1, found)
		}
		return err
	})
	return found, err
}

func (a *api) makeDir(w http.ResponseWriter, _ *http.Request, given url.Values) error {
	named, meta, force, err := wanted(given, defaultDirMode)
	if err != nil {
		return err
	}
	place, err := a.tree.Find(named, true, parents(meta, force))
	if err != nil {
		return err
	}
	defer place.Close()
	if place.Node != nil {
		attr, err := place.Node.Attr()
		if err != nil {
			return err
		}
		if !attr.IsDir() || !force {
			return syscall.EEXIST
		}
	} else if place.Node, err = place.Dir.Mkdir(place.Name, meta); err != nil {
		return err
	}
	found, err := describe(named, place.Node)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusCreated, found)
}

func parents(meta volume.Meta, force bool) *volume.Meta {
	if !force {
		return nil
	}
	return &volume.Meta{Mode: defaultDirMode, UID: meta.UID, GID: meta.GID}
}

func (a *api) change(w http.ResponseWriter, r *http.Request, given url.Values) error {
	var body struct{ UID, GID, Mode *uint32 }
	if err := json.NewDecoder(io.LimitReader(r.Body, 4096)).Decode(&body); err != nil {
		return refusal{http.StatusBadRequest, "invalid_argument", "The body must be a JSON object with uid, gid and mode, each a number that is not negative, or left out."}
	}
	if body.Mode != nil && *body.Mode > 0o7777 {
		return refusal{http.StatusBadRequest, "invalid_argument", "mode: must be at most 4095 (07777)."}
	}
	place, named, err := a.find(given, false)
	if err != nil {
		return err
	}
	defer place.Close()
	if err := place.Node.Set(volume.Change{Mode: body.Mode, UID: body.UID, GID: body.GID}); err != nil {
		return err
	}
	found, err := describe(named, place.Node)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, found)
}

func (a *api) remove(w http.ResponseWriter, _ *http.Request, given url.Values) error {
	place, _, err := a.find(given, false)
	if err != nil {
		return err
	}
	defer place.Close()
	if place.Dir == nil {
		return refusal{http.StatusBadRequest, "invalid_argument", "path: the top folder stays as long as the volume."}
	}
	if err := place.Dir.Discard(place.Name); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (a *api) read(w http.ResponseWriter, _ *http.Request, given url.Values) error {
	place, _, err := a.find(given, true)
	if err != nil {
		return err
	}
	defer place.Close()
	attr, err := place.Node.Attr()
	if err != nil {
		return err
	}
	if attr.IsDir() {
		return syscall.EISDIR
	}
	if !attr.IsFile() {
		return syscall.ENXIO
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.FormatInt(attr.Size, 10))
	w.WriteHeader(http.StatusOK)
	if _, err := io.Copy(w, io.NewSectionReader(place.Node.Reader(), 0, attr.Size)); err != nil {
		panic(http.ErrAbortHandler) // the reader learns by a stream that ends too early
	}
	return nil
}

func (a *api) write(w http.ResponseWriter, r *http.Request, given url.Values) error {
	named, meta, force, err := wanted(given, defaultFileMode)
	if err != nil {
		return err
	}
	place, err := a.tree.Find(named, true, parents(meta, force))
	if err != nil {
		return err
	}
	defer place.Close()
	if place.Dir == nil {
		return syscall.EISDIR
	}
	meta.Mode |= syscall.S_IFREG
	if place.Node != nil {
		attr, err := place.Node.Attr()
		if err != nil {
			return err
		}
		if attr.IsDir() {
			return syscall.EISDIR
		}
		meta = keep(given, meta, attr.Meta)
	}
	fill := func(into *volume.Node) error {
		_, err := io.CopyBuffer(into.Writer(), r.Body, make([]byte, 256<<10))
		return err
	}
	if err := place.Dir.Replace(place.Name, meta, fill); err != nil {
		return err
	}
	written, err := place.Dir.Lookup(place.Name)
	if err != nil {
		return err
	}
	defer written.Close()
	found, err := describe(named, written)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusCreated, found)
}

// keep leaves owner and mode of what is replaced as they are where nobody says otherwise.
func keep(given url.Values, meta, before volume.Meta) volume.Meta {
	if !given.Has("uid") {
		meta.UID = before.UID
	}
	if !given.Has("gid") {
		meta.GID = before.GID
	}
	if !given.Has("mode") {
		meta.Mode = syscall.S_IFREG | before.Mode&0o7777
	}
	return meta
}

func wanted(given url.Values, mode uint64) (named string, meta volume.Meta, force bool, err error) {
	if named, err = pathOf(given); err != nil {
		return
	}
	var uid, gid uint64
	if uid, err = number(given, "uid", 0); err != nil {
		return
	}
	if gid, err = number(given, "gid", 0); err != nil {
		return
	}
	if mode, err = number(given, "mode", mode); err != nil {
		return
	}
	if mode > 0o7777 {
		err = refusal{http.StatusBadRequest, "invalid_argument", "mode: must be at most 4095 (07777)."}
		return
	}
	switch given.Get("force") {
	case "true", "True", "1":
		force = true
	case "", "false", "False", "0":
	default:
		err = refusal{http.StatusBadRequest, "invalid_argument", "force: must be true or false."}
	}
	return named, volume.Meta{Mode: uint32(mode), UID: uint32(uid), GID: uint32(gid)}, force, err
}

func number(given url.Values, name string, otherwise uint64) (uint64, error) {
	if !given.Has(name) {
		return otherwise, nil
	}
	n, err := strconv.ParseUint(given.Get(name), 10, 32)
	if err != nil || n == math.MaxUint32 {
		return 0, refusal{http.StatusBadRequest, "invalid_argument", name + ": must be a number that is not negative."}
	}
	return n, nil
}

func writeJSON(w http.ResponseWriter, status int, v any) error {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.Encode(v)
	return nil
}
