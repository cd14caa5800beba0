// Package fuse serves a volume to one guest's kernel. The messages are those of
// FUSE (include/uapi/linux/fuse.h, protocol 7.31), as they come out of /dev/fuse
// in the guest; its agent passes them on and back, and answers INIT itself. A
// guest may send whatever it likes: what it says is bounded and checked, and it
// reaches the one volume that the connection is for.
package fuse

import (
	"encoding/binary"
	"syscall"

	"space/agent/volume"
)

// Messages.
const (
	opLookup      = 1
	opForget      = 2
	opGetattr     = 3
	opSetattr     = 4
	opReadlink    = 5
	opSymlink     = 6
	opMknod       = 8
	opMkdir       = 9
	opUnlink      = 10
	opRmdir       = 11
	opRename      = 12
	opLink        = 13
	opOpen        = 14
	opRead        = 15
	opWrite       = 16
	opStatfs      = 17
	opRelease     = 18
	opFsync       = 20
	opFlush       = 25
	opOpendir     = 27
	opReaddir     = 28
	opReleasedir  = 29
	opFsyncdir    = 30
	opGetlk       = 31
	opSetlk       = 32
	opSetlkw      = 33
	opCreate      = 35
	opInterrupt   = 36
	opDestroy     = 38
	opBatchForget = 42
	opRename2     = 45

	// OpKnown is no message of FUSE: the agent tells what a kernel knows from a
	// connection before (see Known).
	OpKnown = 1 << 20
)

const (
	inHeader   = 40
	outHeader  = 16
	maxMessage = 1 << 20
	rootID     = 1
	// MaxData is the most that is read or written at once.
	MaxData = 128 << 10
)

// header is what each message begins with.
type header struct {
	op       uint32
	unique   uint64
	node     uint64
	uid, gid uint32
}

// reader takes a message apart. After a field that is not there, all are zero
// and bad is set.
type reader struct {
	left []byte
	bad  bool
}

func (r *reader) take(n int) []byte {
	if n < 0 || n > len(r.left) {
		r.bad, r.left = true, nil
		return nil
	}
	head := r.left[:n]
	r.left = r.left[n:]
	return head
}

func (r *reader) u16() uint16 {
	if b := r.take(2); b != nil {
		return binary.LittleEndian.Uint16(b)
	}
	return 0
}

func (r *reader) u32() uint32 {
	if b := r.take(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (r *reader) u64() uint64 {
	if b := r.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// name takes a text that ends with a zero byte.
func (r *reader) name() string {
	for i, b := range r.left {
		if b == 0 {
			return string(r.take(i + 1)[:i])
		}
	}
	r.bad = true
	return ""
}

// writer puts an answer together.
type writer struct{ out []byte }

func (w *writer) u16(v uint16) { w.out = append(w.out, byte(v), byte(v>>8)) }
func (w *writer) u32(v uint32) { w.u16(uint16(v)); w.u16(uint16(v >> 16)) }
func (w *writer) u64(v uint64) { w.u32(uint32(v)); w.u32(uint32(v >> 32)) }

// begin leaves room for the header, which end fills in.
func (w *writer) begin() { w.out = append(w.out[:0], make([]byte, outHeader)...) }

func (w *writer) end(unique uint64, err error) []byte {
	var code syscall.Errno
	if err != nil {
		code = number(err)
		w.out = w.out[:outHeader]
	}
	binary.LittleEndian.PutUint32(w.out, uint32(len(w.out)))
	binary.LittleEndian.PutUint32(w.out[4:], uint32(-int32(code)))
	binary.LittleEndian.PutUint64(w.out[8:], unique)
	return w.out
}

// attr appends struct fuse_attr.
func (w *writer) attr(node uint64, a *volume.Attr) {
	w.u64(node)
	w.u64(uint64(a.Size))
	w.u64(uint64(a.Blocks))
	for _, t := range []syscall.Timespec{a.Atime, a.Mtime, a.Ctime} {
		w.u64(uint64(t.Sec))
	}
	for _, t := range []syscall.Timespec{a.Atime, a.Mtime, a.Ctime} {
		w.u32(uint32(t.Nsec))
	}
	for _, v := range []uint32{a.Mode, uint32(a.Nlink), a.UID, a.GID, 0, 4096, 0} {
		w.u32(v)
	}
}

// attrOut appends struct fuse_attr_out. Nothing is valid for any time: others
// change it too.
func (w *writer) attrOut(node uint64, a *volume.Attr) {
	w.u64(0)
	w.u64(0)
	w.attr(node, a)
}

// entryOut appends struct fuse_entry_out.
func (w *writer) entryOut(node uint64, a *volume.Attr) {
	w.u64(node)
	for i := 0; i < 4; i++ { // generation: inode numbers are not used again; no validity
		w.u64(0)
	}
	w.attr(node, a)
}
