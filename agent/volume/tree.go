// Package volume is a volume's tree on the host: folders and plain files, nothing
// else, and what guests say they are.
//
// A volume is written by people who are not trusted, and by several machines at
// once. So no owner, mode, symlink, device or FIFO of theirs becomes one of the
// host's: each entry is a folder or a plain file of the server's own user, and an
// extended attribute of it says what it stands for (as QEMU's "mapped-xattr"
// does). Names are looked up one at a time below an open folder, never through a
// link, so no path leads out whatever is renamed meanwhile.
package volume

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
)

const (
	tree  = "tree" // what guests see
	trash = "tmp"  // uploads on their way in, and what was deleted on its way out

	deleted = "d" // how names of what was deleted begin there

	// entryBytes is what an entry counts for, whatever is in it.
	entryBytes = 4096
)

// Tree is one volume. It is safe for concurrent use.
type Tree struct {
	root  *Node
	trash int // descriptor of the folder

	limit   int64 // of the sizes of all files together
	reserve int64 // what stays free on the file system

	mu    sync.Mutex
	used  int64
	opens map[uint64]int // open nodes by inode
	names sync.Mutex     // held while names change
	next  uint64
}

// Open opens the volume in dir, which holds at most limit bytes and leaves
// reserve bytes of the file system free. What a killed server left half done is
// removed.
func Open(dir string, limit, reserve int64) (*Tree, error) {
	for _, name := range []string{tree, trash} {
		if err := syscall.Mkdir(dir+"/"+name, 0o700); err != nil && err != syscall.EEXIST {
			return nil, fmt.Errorf("%s/%s: %w", dir, name, err)
		}
	}
	root, err := syscall.Open(dir+"/"+tree, dirFlags, 0)
	if err != nil {
		return nil, err
	}
	bin, err := syscall.Open(dir+"/"+trash, dirFlags, 0)
	if err != nil {
		return nil, err
	}
	t := &Tree{trash: bin, limit: limit, reserve: reserve, opens: map[uint64]int{}}
	if t.root, err = t.newNode(root, nil, ""); err != nil {
		return nil, err
	}
	t.used = count(root, 0)
	return t, t.emptyTrash("")
}

// Root is the tree's top folder; the caller does not close it.
func (t *Tree) Root() *Node { return t.root }

// Used is what counts against the limit.
func (t *Tree) Used() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.used
}

// Limit is how much the volume may hold.
func (t *Tree) Limit() int64 { return t.limit }

// charge counts n more bytes, if they may be had.
func (t *Tree) charge(n int64) error {
	var fs syscall.Statfs_t
	if err := syscall.Fstatfs(t.root.fd, &fs); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if n > 0 && (t.used+n > t.limit || int64(fs.Bavail)*fs.Bsize < t.reserve+n) {
		return syscall.ENOSPC
	}
	t.used += n
	return nil
}

func (t *Tree) refund(n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.used -= n
}

// maxDepth bounds how many folders are open at once while a tree is counted.
const maxDepth = 8192

// count adds up what is below an open folder, without it. What lies deeper than
// maxDepth is left out: it counts again when it is moved or written to.
func count(dir, depth int) (total int64) {
	if depth > maxDepth {
		return 0
	}
	each(dir, func(name string) error {
		var st syscall.Stat_t
		if statat(dir, name, &st) != nil {
			return nil
		}
		if st.Mode&syscall.S_IFMT != syscall.S_IFDIR {
			// shared by the links of a file; a remainder is of no account
			total += (entryBytes + st.Size) / int64(st.Nlink)
			return nil
		}
		total += entryBytes
		if sub, err := openat(dir, name, dirFlags, 0); err == nil {
			total += count(sub, depth+1)
			syscall.Close(sub)
		}
		return nil
	})
	return total
}

// scratch names something in the trash.
func (t *Tree) scratch() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.next++
	return fmt.Sprintf("%d", t.next)
}

// emptyTrash deletes what is in the trash under names that begin so. Folders are
// taken apart from the top, each moved into the trash itself, so that no depth is
// too deep.
func (t *Tree) emptyTrash(prefix string) error {
	for some := true; some; { // what cannot be removed is left for the next start
		some = false
		err := each(t.trash, func(name string) error {
			if strings.HasPrefix(name, prefix) && t.destroy(name) {
				some = true
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (t *Tree) destroy(name string) (removed bool) {
	dir, err := openat(t.trash, name, dirFlags, 0)
	if err != nil {
		return t.remove(t.trash, name, 0)
	}
	defer syscall.Close(dir)
	each(dir, func(entry string) error {
		var st syscall.Stat_t
		if statat(dir, entry, &st) == nil && st.Mode&syscall.S_IFMT == syscall.S_IFDIR {
			renameat(dir, entry, t.trash, deleted+t.scratch())
		} else {
			t.remove(dir, entry, 0)
		}
		return nil
	})
	return t.remove(t.trash, name, removeDir)
}

// remove removes a name of something deleted. What somebody has open counts until
// that is closed; the rest no longer does.
func (t *Tree) remove(dir int, name string, flags int) (removed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var st syscall.Stat_t
	if statat(dir, name, &st) != nil || unlinkat(dir, name, flags) != nil {
		return false
	}
	if flags == removeDir {
		t.used -= entryBytes
	} else if st.Nlink == 1 && t.opens[st.Ino] == 0 {
		t.used -= entryBytes + st.Size
	}
	return true
}

// each calls do for the names in an open folder, some at a time however many there
// are, until it returns an error.
func each(dir int, do func(name string) error) error {
	const batch = 1024
	fd, err := openat(dir, ".", dirFlags, 0) // a position of its own
	if err != nil {
		return err
	}
	file := os.NewFile(uintptr(fd), "")
	defer file.Close()
	for {
		names, err := file.Readdirnames(batch)
		for _, name := range names {
			if err := do(name); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
