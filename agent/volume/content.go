package volume

import (
	"io"
	"os"
	"syscall"
)

// MaxLink is the longest target of a symbolic link.
const MaxLink = 4095

// ReadAt reads content.
func (n *Node) ReadAt(into []byte, at int64) (int, error) {
	got, err := syscall.Pread(n.fd, into, at)
	if got < 0 {
		got = 0
	}
	return got, err
}

// End is the place behind all content.
const End = -1

// WriteAt writes content, all of it or with an error.
func (n *Node) WriteAt(from []byte, at int64) (int, error) {
	if at != End && (at < 0 || at > 1<<60) {
		return 0, syscall.EFBIG
	}
	t := n.tree
	t.names.Lock() // sizes change one after another, so that each change is counted once
	defer t.names.Unlock()
	var st syscall.Stat_t
	if err := syscall.Fstat(n.fd, &st); err != nil {
		return 0, err
	}
	if at == End {
		at = st.Size
	}
	more := at + int64(len(from)) - st.Size
	if more < 0 {
		more = 0
	}
	if err := t.charge(more); err != nil {
		return 0, err
	}
	done := 0
	for done < len(from) {
		wrote, err := syscall.Pwrite(n.fd, from[done:], at+int64(done))
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			var now syscall.Stat_t
			if syscall.Fstat(n.fd, &now) == nil {
				t.refund(more - (now.Size - st.Size))
			}
			return done, err
		}
		done += wrote
	}
	return done, nil
}

// truncate is called with names held.
func (n *Node) truncate(size int64) error {
	if size < 0 || size > 1<<60 {
		return syscall.EFBIG
	}
	var st syscall.Stat_t
	if err := syscall.Fstat(n.fd, &st); err != nil {
		return err
	}
	if err := n.tree.charge(size - st.Size); err != nil {
		return err
	}
	if err := syscall.Ftruncate(n.fd, size); err != nil {
		n.tree.refund(size - st.Size)
		return err
	}
	return nil
}

// Sync makes content durable.
func (n *Node) Sync() error { return syscall.Fsync(n.fd) }

// Target is what a symbolic link says.
func (n *Node) Target() (string, error) {
	into := make([]byte, MaxLink)
	got, err := n.ReadAt(into, 0)
	return string(into[:got]), err
}

// Listing opens a folder to be read through, with a position of its own.
func (n *Node) Listing() (*os.File, error) {
	fd, err := openat(n.fd, ".", dirFlags, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), ""), nil
}

// Each calls do for the names in a folder, until it returns an error.
func (n *Node) Each(do func(name string) error) error { return each(n.fd, do) }

// StatFS is what the volume has and has left, as it looks to a guest.
func (t *Tree) StatFS() (total, free int64) {
	free = t.limit - t.Used()
	var fs syscall.Statfs_t
	if err := syscall.Fstatfs(t.root.fd, &fs); err == nil {
		if left := int64(fs.Bavail)*fs.Bsize - t.reserve; left < free {
			free = left
		}
	}
	if free < 0 {
		free = 0
	}
	return t.limit, free
}

// Discard removes an entry with all that is below it. It is gone at once.
func (n *Node) Discard(name string) error {
	gone, err := n.Lookup(name)
	if err != nil {
		return err
	}
	a, err := gone.Attr()
	gone.Close()
	if err != nil {
		return err
	}
	if !a.IsDir() {
		return n.Unlink(name, false)
	}
	t := n.tree
	t.names.Lock()
	err = renameat(n.fd, name, t.trash, deleted+t.scratch())
	t.names.Unlock()
	if err != nil {
		return err
	}
	return t.emptyTrash(deleted)
}

// Replace puts content that read gives in the place of an entry, whole or not at
// all; others see the old until then.
func (n *Node) Replace(name string, m Meta, read func(into *Node) error) error {
	if err := CheckName(name); err != nil {
		return err
	}
	t := n.tree
	if err := t.charge(entryBytes); err != nil {
		return err
	}
	temporary := "u" + t.scratch()
	fd, err := openat(t.trash, temporary, fileFlags|syscall.O_CREAT|syscall.O_EXCL, 0o600)
	if err != nil {
		t.refund(entryBytes)
		return err
	}
	fresh, err := t.newNode(fd, n, name)
	if err != nil {
		return err
	}
	defer fresh.Close()
	if err = fresh.setMeta(m); err == nil {
		err = read(fresh)
	}
	if err == nil {
		t.names.Lock()
		defer t.names.Unlock()
		if replaced, err := n.Lookup(name); err == nil {
			defer replaced.Close()
		}
		err = renameat(t.trash, temporary, n.fd, name)
	}
	if err != nil {
		unlinkat(t.trash, temporary, 0)
	}
	return err
}

// Reader reads its content.
func (n *Node) Reader() io.ReaderAt { return reading{n} }

// Writer writes behind its content.
func (n *Node) Writer() io.Writer { return writing{n} }

type reading struct{ *Node }

func (r reading) ReadAt(into []byte, at int64) (int, error) {
	got, err := r.Node.ReadAt(into, at)
	if err == nil && got < len(into) {
		err = io.EOF
	}
	return got, err
}

type writing struct{ *Node }

func (w writing) Write(from []byte) (int, error) { return w.WriteAt(from, End) }
