package volume

import (
	"strings"
	"sync"
	"syscall"
)

// Node is an open entry. It stays the same entry whatever happens to its name.
type Node struct {
	tree *Tree
	fd   int
	ino  uint64
	dir  bool

	mu     sync.Mutex
	refs   int
	parent *Node // held; nil for the root
	name   string
}

func (t *Tree) newNode(fd int, parent *Node, name string) (*Node, error) {
	var st syscall.Stat_t
	err := syscall.Fstat(fd, &st)
	if kind := st.Mode & syscall.S_IFMT; err == nil && kind != syscall.S_IFREG && kind != syscall.S_IFDIR {
		err = syscall.EIO // nobody but us writes here, and we make no such thing
	}
	if err != nil {
		syscall.Close(fd)
		return nil, err
	}
	t.mu.Lock()
	t.opens[st.Ino]++
	t.mu.Unlock()
	if parent != nil {
		parent.Hold()
	}
	return &Node{tree: t, fd: fd, ino: st.Ino, dir: st.Mode&syscall.S_IFMT == syscall.S_IFDIR, refs: 1, parent: parent, name: name}, nil
}

// Hold lets the node be closed once more.
func (n *Node) Hold() *Node {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.refs++
	return n
}

// Close lets go of it. The room of a file that has no name any more is free when
// the last has.
func (n *Node) Close() {
	for n != nil {
		n.mu.Lock()
		n.refs--
		last, parent := n.refs == 0, n.parent
		n.mu.Unlock()
		if !last {
			return
		}
		n.tree.closed(n)
		n = parent
	}
}

func (t *Tree) closed(n *Node) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var st syscall.Stat_t
	err := syscall.Fstat(n.fd, &st)
	syscall.Close(n.fd)
	t.opens[n.ino]--
	if t.opens[n.ino] > 0 {
		return
	}
	delete(t.opens, n.ino)
	if err == nil && st.Nlink == 0 && !n.dir {
		t.used -= entryBytes + st.Size
	}
}

// Ino names the entry as long as it lives.
func (n *Node) Ino() uint64 { return n.ino }

// IsDir says whether it is a folder.
func (n *Node) IsDir() bool { return n.dir }

// Parent is the folder it was last seen in, held; the root's is the root.
func (n *Node) Parent() *Node {
	parent, _ := n.place()
	if parent == nil {
		parent = n
	}
	return parent.Hold()
}

// CheckName says whether a name can be one part of a path.
func CheckName(name string) error {
	switch {
	case name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00"):
		return syscall.EINVAL
	case len(name) > 255:
		return syscall.ENAMETOOLONG
	}
	return nil
}

// Lookup opens an entry of a folder.
func (n *Node) Lookup(name string) (*Node, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	fd, err := openat(n.fd, name, fileFlags, 0)
	if err == syscall.EISDIR {
		fd, err = openat(n.fd, name, dirFlags, 0)
	}
	if err != nil {
		return nil, err
	}
	return n.tree.newNode(fd, n, name)
}

// Create makes an entry that is no folder, with content, and opens it.
func (n *Node) Create(name string, m Meta, content []byte) (*Node, error) {
	switch m.Mode & syscall.S_IFMT {
	case syscall.S_IFREG, syscall.S_IFLNK, syscall.S_IFIFO, syscall.S_IFSOCK:
	case syscall.S_IFCHR, syscall.S_IFBLK:
		return nil, syscall.EPERM
	default:
		return nil, syscall.EINVAL
	}
	if err := CheckName(name); err != nil {
		return nil, err
	}
	if err := n.tree.charge(entryBytes + int64(len(content))); err != nil {
		return nil, err
	}
	made, err := n.create(name, m, content)
	if err != nil {
		n.tree.refund(entryBytes + int64(len(content)))
	}
	return made, err
}

func (n *Node) create(name string, m Meta, content []byte) (*Node, error) {
	fd, err := openat(n.fd, name, fileFlags|syscall.O_CREAT|syscall.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	if _, err := syscall.Pwrite(fd, content, 0); err != nil {
		unlinkat(n.fd, name, 0)
		syscall.Close(fd)
		return nil, err
	}
	made, err := n.tree.newNode(fd, n, name)
	if err != nil {
		return nil, err
	}
	return made, made.setMeta(m)
}

// Mkdir makes a folder and opens it.
func (n *Node) Mkdir(name string, m Meta) (*Node, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	if err := n.tree.charge(entryBytes); err != nil {
		return nil, err
	}
	if err := mkdirat(n.fd, name); err != nil {
		n.tree.refund(entryBytes)
		return nil, err
	}
	made, err := n.Lookup(name)
	if err != nil {
		return nil, err
	}
	m.Mode = syscall.S_IFDIR | m.Mode&0o7777
	return made, made.setMeta(m)
}

// Link gives an entry that is no folder one more name.
func (n *Node) Link(target *Node, name string) error {
	if err := CheckName(name); err != nil {
		return err
	}
	t := n.tree
	t.names.Lock()
	defer t.names.Unlock()
	from, old := target.place()
	if from == nil {
		return syscall.EPERM
	}
	var st syscall.Stat_t
	// under the lock nobody moves it between the look and the link
	if err := statat(from.fd, old, &st); err != nil || st.Ino != target.ino {
		return syscall.ESTALE
	}
	return linkat(from.fd, old, n.fd, name)
}

func (n *Node) place() (*Node, string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.parent, n.name
}

// NoReplace is the flag of Rename that leaves alone what has the new name.
const NoReplace = 1

// Rename moves an entry and says which it was.
func (n *Node) Rename(name string, to *Node, as string, flags uint32) (ino uint64, err error) {
	if err := CheckName(name); err != nil {
		return 0, err
	}
	if err := CheckName(as); err != nil {
		return 0, err
	}
	t := n.tree
	t.names.Lock()
	defer t.names.Unlock()
	replaced, missing := to.Lookup(as)
	if missing == nil {
		defer replaced.Close() // counts what is gone
		if flags&NoReplace != 0 {
			return 0, syscall.EEXIST
		}
	}
	var st syscall.Stat_t
	if err := statat(n.fd, name, &st); err != nil {
		return 0, err
	}
	err = renameat(n.fd, name, to.fd, as)
	if err == nil && missing == nil && replaced.dir && replaced.ino != st.Ino {
		t.refund(entryBytes)
	}
	return st.Ino, err
}

// Moved tells a node its new place.
func (n *Node) Moved(to *Node, as string) {
	n.mu.Lock()
	before := n.parent
	n.parent, n.name = to.Hold(), as
	n.mu.Unlock()
	before.Close()
}

// Unlink removes a name; dir says that it is an empty folder's.
func (n *Node) Unlink(name string, dir bool) error {
	gone, err := n.Lookup(name) // its last close counts what is gone
	if err != nil {
		return err
	}
	defer gone.Close()
	n.tree.names.Lock()
	defer n.tree.names.Unlock()
	if dir {
		err := unlinkat(n.fd, name, removeDir)
		if err == nil {
			n.tree.refund(entryBytes)
		}
		return err
	}
	return unlinkat(n.fd, name, 0)
}
