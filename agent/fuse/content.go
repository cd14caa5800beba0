package fuse

import (
	"encoding/binary"
	"syscall"

	"space/agent/volume"
)

// A file's handle says how it was opened, so that it is good on the next
// connection too.
const (
	forWriting = 1
	atEnd      = 2
)

func handleOf(flags uint32) (fh uint64) {
	if flags&syscall.O_ACCMODE != syscall.O_RDONLY {
		fh |= forWriting
	}
	if flags&syscall.O_APPEND != 0 {
		fh |= atEnd
	}
	return fh
}

func (g *guest) opened(id uint64, flags uint32) error {
	node, err := g.nodes.get(id)
	if err != nil {
		return err
	}
	a, err := node.Attr()
	if err != nil {
		return err
	}
	if !a.IsFile() {
		return syscall.ENXIO
	}
	if flags&syscall.O_TRUNC != 0 {
		empty := int64(0)
		if err := node.Set(volume.Change{Size: &empty}); err != nil {
			return err
		}
	}
	if err := g.nodes.pin(id); err != nil {
		return err
	}
	g.out.u64(handleOf(flags))
	g.out.u64(0)
	return nil
}

func (g *guest) open(h header, in *reader) error { return g.opened(h.node, in.u32()) }

func (g *guest) create(h header, in *reader) error {
	flags, mode, _, _, name := in.u32(), in.u32(), in.u32(), in.u32(), in.name()
	if in.bad {
		return syscall.EINVAL
	}
	err := g.make(h, name, volume.Meta{Mode: syscall.S_IFREG | mode&0o7777}, "")
	if err == syscall.EEXIST && flags&syscall.O_EXCL == 0 { // another guest was faster
		err = g.lookup(h, &reader{left: append([]byte(name), 0)})
	}
	if err != nil {
		return err
	}
	id := binary.LittleEndian.Uint64(g.out.out[outHeader:])
	return g.opened(id, flags)
}

func (g *guest) read(h header, in *reader) error {
	_, at, size := in.u64(), in.u64(), in.u32()
	node, err := g.nodes.get(h.node)
	if err != nil {
		return err
	}
	if in.bad || at > 1<<62 {
		return syscall.EINVAL
	}
	if size > MaxData {
		size = MaxData
	}
	start := len(g.out.out)
	g.out.out = append(g.out.out, make([]byte, size)...)
	got, err := node.ReadAt(g.out.out[start:], int64(at))
	g.out.out = g.out.out[:start+got]
	return err
}

func (g *guest) write(h header, in *reader) error {
	const fromCache = 1
	fh, at, size, flags, _, _, _ := in.u64(), in.u64(), in.u32(), in.u32(), in.u64(), in.u32(), in.u32()
	data := in.take(int(size))
	node, err := g.nodes.get(h.node)
	if err != nil {
		return err
	}
	if in.bad || at > 1<<60 {
		return syscall.EFBIG
	}
	place := int64(at)
	if fh&atEnd != 0 && flags&fromCache == 0 {
		place = volume.End // what this guest takes for the end may be another's middle
	}
	done, err := node.WriteAt(data, place)
	if done == 0 && err != nil {
		return err
	}
	g.out.u32(uint32(done))
	g.out.u32(0)
	return nil
}

func (g *guest) release(h header, in *reader) error {
	const unlockAll = 2
	_, _, flags, owned := in.u64(), in.u32(), in.u32(), in.u64()
	if flags&unlockAll != 0 {
		g.locks.set(h.node, span{owner: owner{g, owned, true}, kind: unlock, end: ^uint64(0)})
	}
	g.nodes.unpin(h.node)
	return nil
}

// flush is a file being closed by a process, whose locks on it end with that.
func (g *guest) flush(h header, in *reader) error {
	_, _, owned := in.u64(), in.u64(), in.u64()
	return g.locks.set(h.node, span{owner: owner{g, owned, false}, kind: unlock, end: ^uint64(0)})
}

func (g *guest) fsync(h header, _ *reader) error {
	node, err := g.nodes.get(h.node)
	if err != nil {
		return err
	}
	return node.Sync()
}

func (g *guest) opendir(h header, _ *reader) error {
	if err := g.nodes.pin(h.node); err != nil {
		return err
	}
	g.out.u64(0)
	g.out.u64(0)
	return nil
}

func (g *guest) releasedir(h header, _ *reader) error {
	g.nodes.unpin(h.node)
	return nil
}

// readdir reads on from an offset that the host's file system gave for the entry
// before; so a handle has no position of its own that could be lost.
func (g *guest) readdir(h header, in *reader) error {
	_, at, size := in.u64(), int64(in.u64()), in.u32()
	node, err := g.nodes.get(h.node)
	if err != nil {
		return err
	}
	if in.bad {
		return syscall.EINVAL
	}
	if size > MaxData {
		size = MaxData
	}
	list, err := node.Listing()
	if err != nil {
		return err
	}
	defer list.Close()
	fd := int(list.Fd())
	if _, err := syscall.Seek(fd, at, 0); err != nil {
		return err
	}
	limit := len(g.out.out) + int(size)
	for buffer := make([]byte, 16<<10); ; {
		got, err := syscall.ReadDirent(fd, buffer)
		if err != nil || got == 0 {
			return err
		}
		if g.entries(buffer[:got], limit) {
			return nil
		}
	}
}

// entries appends what getdents64(2) gave, and says whether one found no room.
func (g *guest) entries(raw []byte, limit int) (full bool) {
	const fixed, folder = 19, 4
	for len(raw) >= fixed {
		ino, next := binary.LittleEndian.Uint64(raw), binary.LittleEndian.Uint64(raw[8:])
		length, kind := int(binary.LittleEndian.Uint16(raw[16:])), uint32(raw[18])
		name := raw[fixed:length]
		for i, b := range name {
			if b == 0 {
				name = name[:i]
				break
			}
		}
		raw = raw[length:]
		padded := (len(name) + 7) &^ 7
		if len(g.out.out)+24+padded > limit {
			return true
		}
		if kind != folder {
			kind = 0 // what a file stands for is in its attribute: whoever wants to know asks
		}
		g.out.u64(ino)
		g.out.u64(next)
		g.out.u32(uint32(len(name)))
		g.out.u32(kind)
		g.out.out = append(g.out.out, name...)
		g.out.out = append(g.out.out, make([]byte, padded-len(name))...)
	}
	return false
}
