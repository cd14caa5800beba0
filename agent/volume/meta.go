package volume

import (
	"encoding/binary"
	"syscall"
)

// attribute holds what an entry stands for: mode, owner, group and device number,
// 4 bytes each, little endian. An entry without one is root's.
const attribute = "user.space.meta"

// Meta is what a guest said an entry is.
type Meta struct {
	Mode, UID, GID, Dev uint32
}

// Attr is all that is known of an entry.
type Attr struct {
	Meta
	Ino                 uint64
	Nlink               uint64
	Size, Blocks        int64
	Atime, Mtime, Ctime syscall.Timespec
}

// IsDir says whether it is a folder.
func (a *Attr) IsDir() bool { return a.Mode&syscall.S_IFMT == syscall.S_IFDIR }

// IsLink says whether it stands for a symbolic link, whose target is its content.
func (a *Attr) IsLink() bool { return a.Mode&syscall.S_IFMT == syscall.S_IFLNK }

// IsFile says whether it has content of its own.
func (a *Attr) IsFile() bool { return a.Mode&syscall.S_IFMT == syscall.S_IFREG }

// Attr reads what is known of a node.
func (n *Node) Attr() (Attr, error) {
	var st syscall.Stat_t
	if err := syscall.Fstat(n.fd, &st); err != nil {
		return Attr{}, err
	}
	a := Attr{
		Ino: st.Ino, Nlink: uint64(st.Nlink), Size: st.Size, Blocks: st.Blocks,
		Atime: st.Atim, Mtime: st.Mtim, Ctime: st.Ctim,
	}
	isDir := st.Mode&syscall.S_IFMT == syscall.S_IFDIR
	var raw [16]byte
	if got, err := fgetxattr(n.fd, attribute, raw[:]); err == nil && got == len(raw) {
		a.Meta = Meta{binary.LittleEndian.Uint32(raw[0:]), binary.LittleEndian.Uint32(raw[4:]), binary.LittleEndian.Uint32(raw[8:]), binary.LittleEndian.Uint32(raw[12:])}
	}
	if isDir != a.IsDir() || a.Mode&syscall.S_IFMT == 0 {
		a.Meta = Meta{Mode: syscall.S_IFREG | 0o644}
		if isDir {
			a.Mode = syscall.S_IFDIR | 0o755
		}
		if n.isTop() {
			a.Mode = syscall.S_IFDIR | 0o777 // any user of a sandbox may begin to use it
		}
	}
	return a, nil
}

func (n *Node) isTop() bool {
	parent, _ := n.place()
	return n.dir && parent == nil
}

func (n *Node) setMeta(m Meta) error {
	var raw [16]byte
	binary.LittleEndian.PutUint32(raw[0:], m.Mode)
	binary.LittleEndian.PutUint32(raw[4:], m.UID)
	binary.LittleEndian.PutUint32(raw[8:], m.GID)
	binary.LittleEndian.PutUint32(raw[12:], m.Dev)
	return fsetxattr(n.fd, attribute, raw[:])
}

// Change is what to change of an entry; nil leaves a part as it is.
type Change struct {
	Mode, UID, GID *uint32 // Mode: the permission bits
	Size           *int64
	Times          *[2]syscall.Timespec
}

// Set changes an entry.
func (n *Node) Set(c Change) error {
	n.tree.names.Lock() // one that reads and writes back
	defer n.tree.names.Unlock()
	a, err := n.Attr()
	if err != nil {
		return err
	}
	m := a.Meta
	if c.Mode != nil {
		m.Mode = m.Mode&syscall.S_IFMT | *c.Mode&0o7777
	}
	if c.UID != nil {
		m.UID = *c.UID
	}
	if c.GID != nil {
		m.GID = *c.GID
	}
	if m != a.Meta {
		if err := n.setMeta(m); err != nil {
			return err
		}
	}
	if c.Size != nil {
		if !a.IsFile() {
			return syscall.EINVAL
		}
		if err := n.truncate(*c.Size); err != nil {
			return err
		}
	}
	if c.Times != nil {
		return futimens(n.fd, c.Times)
	}
	return nil
}
