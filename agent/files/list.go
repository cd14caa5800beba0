package files

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sort"

	"space/agent/accounts"
	"space/agent/fault"
)

// MaxEntries is how many entries one listing has at most.
const MaxEntries = 10000

// MaxDepth bounds how deep a listing goes.
const MaxDepth = 64

// listing collects entries until it is full.
type listing struct {
	entries   []Info
	truncated bool
	names     *accounts.Names
}

// List describes what a directory holds, depth levels down (1: only its own
// entries), each directory before its content, sorted by name. Symlinks are
// shown, not followed, except path itself. truncated says that there is more.
func List(path string, depth int) (entries []Info, truncated bool, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, false, missing(err, path)
	}
	if !info.IsDir() {
		return nil, false, fault.New(http.StatusConflict, "not_a_directory", "%s: is not a directory; use GET /files", path)
	}
	l := &listing{entries: []Info{}, names: accounts.ReadNames()}
	if err := l.add(path, depth); err != nil {
		return nil, false, missing(err, path)
	}
	return l.entries, l.truncated, nil
}

func (l *listing) add(dir string, depth int) error {
	names, more, err := readNames(dir, MaxEntries-len(l.entries))
	if err != nil {
		return err
	}
	l.truncated = l.truncated || more
	for _, name := range names {
		path := filepath.Join(dir, name)
		info, err := os.Lstat(path)
		if err != nil {
			continue // gone since
		}
		if len(l.entries) == MaxEntries {
			l.truncated = true
			return nil
		}
		l.entries = append(l.entries, describe(path, info, l.names))
		if info.IsDir() && depth > 1 {
			// One that vanished or cannot be read is shown without content.
			_ = l.add(path, depth-1)
		}
	}
	return nil
}

// readNames returns up to limit names, sorted, and whether there are more. A
// directory of millions is not read to its end.
func readNames(dir string, limit int) (names []string, more bool, err error) {
	file, err := os.Open(dir)
	if err != nil {
		return nil, false, err
	}
	defer file.Close()
	names, err = file.Readdirnames(limit + 1)
	if err != nil && err != io.EOF {
		return nil, false, err
	}
	if len(names) > limit {
		names, more = names[:limit], true
	}
	sort.Strings(names)
	return names, more, nil
}
