package fuse

import (
	"syscall"

	"space/agent/volume"
)

// handlers answer a message, of which they read all before they do anything.
var handlers = map[uint32]func(*guest, header, *reader) error{
	opLookup: (*guest).lookup, opGetattr: (*guest).getattr, opSetattr: (*guest).setattr,
	opReadlink: (*guest).readlink, opSymlink: (*guest).symlink, opMknod: (*guest).mknod, opMkdir: (*guest).mkdir,
	opUnlink: (*guest).unlink, opRmdir: (*guest).rmdir, opRename: (*guest).rename, opRename2: (*guest).rename2,
	opLink: (*guest).link, opStatfs: (*guest).statfs, opDestroy: (*guest).nothing,
	opOpen: (*guest).open, opCreate: (*guest).create, opRead: (*guest).read, opWrite: (*guest).write,
	opRelease: (*guest).release, opFlush: (*guest).flush, opFsync: (*guest).fsync,
	opOpendir: (*guest).opendir, opReaddir: (*guest).readdir, opReleasedir: (*guest).releasedir, opFsyncdir: (*guest).fsync,
	opGetlk: (*guest).getlk, opSetlk: (*guest).setlk,
}

func (g *guest) nothing(header, *reader) error { return nil }

// entry answers with an entry that was found or made, and keeps it as known.
func (g *guest) entry(parent uint64, name string, node *volume.Node, err error) error {
	if err != nil {
		if node != nil {
			node.Close()
		}
		return err
	}
	a, err := node.Attr()
	if err != nil {
		node.Close()
		return err
	}
	if err := g.nodes.tell(parent, name, node); err != nil {
		return err
	}
	g.out.entryOut(a.Ino, &a)
	return nil
}

func (g *guest) lookup(h header, in *reader) error {
	name := in.name()
	dir, err := g.nodes.get(h.node)
	if err != nil {
		return err
	}
	node, err := dir.Lookup(name)
	return g.entry(h.node, name, node, err)
}

func (g *guest) attr(id uint64) error {
	node, err := g.nodes.get(id)
	if err != nil {
		return err
	}
	a, err := node.Attr()
	if err == nil {
		g.out.attrOut(id, &a)
	}
	return err
}

func (g *guest) getattr(h header, _ *reader) error { return g.attr(h.node) }

func (g *guest) setattr(h header, in *reader) error {
	const setMode, setUID, setGID, setSize, setAtime, setMtime, nowAtime, nowMtime = 1, 2, 4, 8, 0x10, 0x20, 0x80, 0x100
	valid, _, _, size, _ := in.u32(), in.u32(), in.u64(), int64(in.u64()), in.u64()
	atime, mtime, _ := int64(in.u64()), int64(in.u64()), in.u64()
	atimeNs, mtimeNs, _ := int64(in.u32()), int64(in.u32()), in.u32()
	mode, _, uid, gid := in.u32(), in.u32(), in.u32(), in.u32()
	node, err := g.nodes.get(h.node)
	if err != nil {
		return err
	}
	if in.bad {
		return syscall.EINVAL
	}
	var change volume.Change
	if valid&setMode != 0 {
		change.Mode = &mode
	}
	if valid&setUID != 0 {
		change.UID = &uid
	}
	if valid&setGID != 0 {
		change.GID = &gid
	}
	if valid&setSize != 0 {
		change.Size = &size
	}
	if valid&(setAtime|setMtime) != 0 {
		change.Times = &[2]syscall.Timespec{
			moment(atime, atimeNs, valid&setAtime != 0, valid&nowAtime != 0), moment(mtime, mtimeNs, valid&setMtime != 0, valid&nowMtime != 0),
		}
	}
	if err := node.Set(change); err != nil {
		return err
	}
	return g.attr(h.node)
}

func moment(s, ns int64, set, now bool) syscall.Timespec {
	switch {
	case !set:
		return syscall.Timespec{Nsec: volume.UtimeOmit}
	case now || ns > 999999999:
		return syscall.Timespec{Nsec: volume.UtimeNow}
	}
	return syscall.Timespec{Sec: s, Nsec: ns}
}

func (g *guest) readlink(h header, _ *reader) error {
	node, err := g.nodes.get(h.node)
	if err != nil {
		return err
	}
	a, err := node.Attr()
	if err != nil {
		return err
	}
	if !a.IsLink() {
		return syscall.EINVAL
	}
	target, err := node.Target()
	g.out.out = append(g.out.out, target...)
	return err
}

// make makes an entry of a folder and answers with it.
func (g *guest) make(h header, name string, meta volume.Meta, content string) error {
	dir, err := g.nodes.get(h.node)
	if err != nil {
		return err
	}
	var node *volume.Node
	meta.UID, meta.GID = h.uid, h.gid
	if parent, err := dir.Attr(); err != nil {
		return err
	} else if parent.Mode&syscall.S_ISGID != 0 { // as on any file system
		meta.GID = parent.GID
		if meta.Mode&syscall.S_IFMT == syscall.S_IFDIR {
			meta.Mode |= syscall.S_ISGID
		}
	}
	if meta.Mode&syscall.S_IFMT == syscall.S_IFDIR {
		node, err = dir.Mkdir(name, meta)
	} else {
		node, err = dir.Create(name, meta, []byte(content))
	}
	return g.entry(h.node, name, node, err)
}

func (g *guest) symlink(h header, in *reader) error {
	name, target := in.name(), in.name()
	if in.bad || target == "" {
		return syscall.EINVAL
	}
	if len(target) > volume.MaxLink {
		return syscall.ENAMETOOLONG
	}
	return g.make(h, name, volume.Meta{Mode: syscall.S_IFLNK | 0o777}, target)
}

func (g *guest) mknod(h header, in *reader) error {
	mode, _, _, _, name := in.u32(), in.u32(), in.u32(), in.u32(), in.name()
	if in.bad {
		return syscall.EINVAL
	}
	return g.make(h, name, volume.Meta{Mode: mode & (syscall.S_IFMT | 0o7777)}, "")
}

func (g *guest) mkdir(h header, in *reader) error {
	mode, _, name := in.u32(), in.u32(), in.name()
	if in.bad {
		return syscall.EINVAL
	}
	return g.make(h, name, volume.Meta{Mode: syscall.S_IFDIR | mode&0o7777}, "")
}

func (g *guest) link(h header, in *reader) error {
	of, name := in.u64(), in.name()
	dir, err := g.nodes.get(h.node)
	if err != nil {
		return err
	}
	target, err := g.nodes.get(of)
	if err != nil {
		return err
	}
	if err := dir.Link(target, name); err != nil {
		return err
	}
	node, err := dir.Lookup(name)
	return g.entry(h.node, name, node, err)
}

func (g *guest) unlink(h header, in *reader) error {
	dir, err := g.nodes.get(h.node)
	if err != nil {
		return err
	}
	return dir.Unlink(in.name(), false)
}

func (g *guest) rmdir(h header, in *reader) error {
	dir, err := g.nodes.get(h.node)
	if err != nil {
		return err
	}
	return dir.Unlink(in.name(), true)
}

func (g *guest) rename(h header, in *reader) error {
	to := in.u64()
	return g.move(h, to, 0, in)
}

func (g *guest) rename2(h header, in *reader) error {
	to, flags, _ := in.u64(), in.u32(), in.u32()
	return g.move(h, to, flags, in)
}

func (g *guest) move(h header, to uint64, flags uint32, in *reader) error {
	name, as := in.name(), in.name()
	if in.bad || flags&^volume.NoReplace != 0 {
		return syscall.EINVAL
	}
	from, err := g.nodes.get(h.node)
	if err != nil {
		return err
	}
	target, err := g.nodes.get(to)
	if err != nil {
		return err
	}
	moved, err := from.Rename(name, target, as, flags)
	if err != nil {
		return err
	}
	g.nodes.moved(moved, to, as)
	if at := g.nodes.known[moved]; at != nil && at.node != nil {
		at.node.Moved(target, as)
	}
	return nil
}

func (g *guest) statfs(header, *reader) error {
	const block = 4096
	total, free := g.tree.StatFS()
	for _, n := range []int64{total / block, free / block, free / block, total / block, free / block} {
		g.out.u64(uint64(n))
	}
	for _, n := range []uint32{block, 255, block, 0, 0, 0, 0, 0, 0, 0} {
		g.out.u32(n)
	}
	return nil
}
